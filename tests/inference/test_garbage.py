"""What a process has imported is kept from full collections, once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from inference.garbage import FULL_COLLECTION_AFTER, keep_imports, make_full_collections_rare

keep_imports()
kept = gc.get_freeze_count()
assert kept > 1000, kept
assert gc.get_threshold()[2] == 10
make_full_collections_rare()
assert gc.get_threshold()[2] == FULL_COLLECTION_AFTER
later = [[] for _ in range(1000)]
keep_imports()
assert gc.get_freeze_count() <= kept, "what came later may go again"
print("kept")
"""


def test_imports_are_kept_once() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ran.stdout == "kept\n", ran.stderr
