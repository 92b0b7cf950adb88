"""The limit of file descriptors, in a process of its own: it is raised for good."""

from __future__ import annotations

import subprocess
import sys

from tests.cases import each_case

LIMIT = "resource.getrlimit(resource.RLIMIT_NOFILE)"
RAISE = f"""
import resource
from inference.descriptors import raise_descriptor_limit
print({LIMIT}, raise_descriptor_limit(), {LIMIT})
"""
COMMAND = f"""
import resource, runpy, sys
sys.argv = ["manage.py", "version"]
try:
    runpy.run_path("manage.py", run_name="__main__")
except SystemExit:
    print({LIMIT})
"""


@each_case(("code", "printed"), [(RAISE, "(200, 300) 300 (300, 300)"), (COMMAND, "(300, 300)")])
def test_the_soft_limit_is_raised_to_the_hard_one_by_every_command(code: str, printed: str) -> None:
    limits = ["sh", "-c", 'ulimit -Sn 200; ulimit -Hn 300; exec "$@"', "sh"]
    ran = subprocess.run(
        [*limits, sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip().endswith(printed)
