"""What a process has imported is kept from full collections, once."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from inference.garbage import uncollected
from tests.cases import each_case

PROGRAM = """
import gc
from inference.garbage import FULL_COLLECTION_AFTER, freeze_heap, make_full_collections_rare

freeze_heap()
kept = gc.get_freeze_count()
assert kept > 1000, kept
assert gc.get_threshold()[2] == 10
make_full_collections_rare()
assert gc.get_threshold()[2] == FULL_COLLECTION_AFTER
later = [[] for _ in range(1000)]
freeze_heap()
assert gc.get_freeze_count() <= kept, "what came later may go again"
print("done")
"""

ASLEEP = """
import gc
import weakref
from inference.garbage import freeze_heap
from inference.engine.load.sleeper import RestingModels
import torch

class Steps:
    device = torch.device("cpu")

    def __init__(self):
        self.kv = torch.zeros(4)
        self.itself = self

    def sleep(self):
        del self.kv

    def wake(self):
        self.kv = torch.zeros(4)

steps, others = Steps(), Steps()
kept = weakref.ref(others.kv)
freeze_heap()
del others
gc.collect()
assert kept() is not None, "it is exempt"
RestingModels([steps], process_bytes=0).fall_asleep()
assert kept() is None, "asleep the cycle is gone"
assert gc.get_freeze_count() > 1000
print("done")
"""


@each_case("program", [PROGRAM, ASLEEP], ids=["kept once", "freed by sleep"])
def test_what_is_exempt_from_collection(program: str) -> None:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "done\n", ran.stderr


def test_collection_is_paused_and_goes_on_however_imports_end() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled(), "the outer one has not ended"
    assert gc.isenabled()
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()
