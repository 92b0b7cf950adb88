"""The lock files as they stand, against the requirements, and how they are read and written."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from helexa_site.bootstrap.environment import CPU_LOCK, CUDA_LOCK, LOCKS_OF, pins_line
from helexa_site.program import REPOSITORY_DIR
from tests.cases import each_case

OF_GATEWAY, OF_NEURON = LOCKS_OF["requirements.txt"]
LOCK = runpy.run_path(str(REPOSITORY_DIR / "packaging" / "lock"))
locked_in = LOCK["locked_in"]
TEXT = """\
# A comment.
networkx==3.6.1 ; python_full_version < '3.12' \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
    # via
    #   -r requirements.txt
    #   torch
psycopg[binary]==3.3.9 \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)


@each_case("name", LOCKS_OF)
def test_the_lock_files_are_of_these_pins(name: str) -> None:
    text = (REPOSITORY_DIR / LOCKS_OF[name][-1]).read_text()
    assert pins_line(REPOSITORY_DIR / name) in text, "packaging/lock writes the lock files"


def test_every_package_has_hashes_and_one_place() -> None:
    locked = {
        name: list(locked_in(REPOSITORY_DIR / name)) for name in (OF_GATEWAY, OF_NEURON, CUDA_LOCK)
    }
    found = [(one.name, one.marker) for pins in locked.values() for one in pins]
    assert len(found) == len(set(found)) > 100
    assert all(one.hashes for pins in locked.values() for one in pins)
    gateway, neuron, cuda = ({one.name for one in pins} for pins in locked.values())
    assert "torch" in neuron
    assert "nvidia-cublas" in cuda
    assert not any(name == "torch" or "nvidia" in name for name in gateway)
    # NVML's binding needs no CUDA.
    assert {name for name in neuron if "nvidia" in name or "cuda" in name} == {"nvidia-ml-py"}


def test_torch_is_locked_in_both_its_builds() -> None:
    (torch,) = (one for one in locked_in(REPOSITORY_DIR / OF_NEURON) if one.name == "torch")
    # Of torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, from its project's own index.
    assert "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b" in torch.hashes
    assert len(torch.hashes) > 20
    (alone,) = locked_in(REPOSITORY_DIR / CPU_LOCK)
    assert (alone.version, alone.hashes) == (f"{torch.version}+cpu", torch.hashes)


def test_a_lock_file_is_read_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.write_text(TEXT)
    first, second = locked_in(path)
    assert (first.name, first.version, first.marker) == (
        "networkx",
        "3.6.1",
        "python_full_version < '3.12'",
    )
    assert first.hashes == ("a" * 64, "b" * 64)
    assert "torch" in first.needed_by
    assert (second.extras, second.version) == ("[binary]", "3.3.9")
    path.write_text(first.text() + second.text())
    assert [one.text() for one in locked_in(path)] == [first.text(), second.text()]
    path.write_text("networkx\n")
    with pytest.raises(ValueError, match=r"a\.lock:1"):
        list(locked_in(path))
