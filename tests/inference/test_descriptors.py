"""The limit of file descriptors, in a process of its own: it is raised for good."""

from __future__ import annotations

import subprocess
import sys

RAISE = """
import resource
from inference.descriptors import raise_descriptor_limit
before = resource.getrlimit(resource.RLIMIT_NOFILE)
print(before, raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    command = ["sh", "-c", 'ulimit -Sn 200; ulimit -Hn 300; exec "$@"', "sh"]
    ran = subprocess.run(
        [*command, sys.executable, "-c", RAISE], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "(200, 300) 300 (300, 300)"


def test_every_command_raises_it_for_what_it_starts() -> None:
    code = "import resource, runpy, sys; sys.argv = ['manage.py', 'version']\n" + (
        "try:\n    runpy.run_path('manage.py', run_name='__main__')\n"
        "except SystemExit:\n    print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = ["sh", "-c", 'ulimit -Sn 200; ulimit -Hn 300; exec "$@"', "sh"]
    ran = subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip().endswith("(300, 300)")
