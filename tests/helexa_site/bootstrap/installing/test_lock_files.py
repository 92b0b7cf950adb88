"""The lock files as they stand, against the requirements, and how they are read."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

from helexa_site.bootstrap.installing.environment import REPOSITORY_DIR
from helexa_site.bootstrap.installing.lock_files import (
    LOCKS_OF,
    OF_CUDA,
    OF_GATEWAY,
    OF_NEURON,
    cpu_build,
    locked_in,
    locks_of,
    not_locked,
)
from helexa_site.bootstrap.installing.requirements import LINE, Requirement, normal_name
from tests.cases import each_case

GATEWAY = REPOSITORY_DIR / "requirements-gateway.txt"
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


def pins_of(name: str) -> set[tuple[str, str]]:
    """Returns the pins of every line, whichever Python and system it is for."""
    found = set()
    for line in (REPOSITORY_DIR / name).read_text().splitlines():
        if match := LINE.match(line):
            found.add((normal_name(match["name"]), match["version"]))
    return found


@each_case("kind", ["gateway", "neuron"])
def test_each_pin_is_locked_in_its_version_and_no_other(kind: str) -> None:
    pins = pins_of(f"requirements-{kind}.txt")
    locked = list(locked_in(REPOSITORY_DIR / f"requirements-{kind}.lock"))
    assert len(pins) > 5
    names = {name for name, _ in pins}
    versions = {(one.name, one.version) for one in locked if one.name in names}
    assert pins == versions, "packaging/lock writes the lock files"


def test_every_package_has_hashes_and_one_place() -> None:
    found = [
        (one.name, one.marker)
        for name in (OF_GATEWAY, OF_NEURON, OF_CUDA)
        for one in locked_in(REPOSITORY_DIR / name)
        if one.hashes
    ]
    assert len(found) == len(set(found)) > 100
    text = "".join((REPOSITORY_DIR / name).read_text() for name in (OF_GATEWAY, OF_NEURON, OF_CUDA))
    assert text.count("==") >= len(found)
    assert len(found) == sum(" \\" in line for line in text.splitlines() if line[0] not in " #")


def test_a_gateway_has_neither_torch_nor_cuda_and_cuda_is_a_part_of_its_own() -> None:
    gateway, neuron, cuda = (
        {one.name for one in locked_in(REPOSITORY_DIR / name)}
        for name in (OF_GATEWAY, OF_NEURON, OF_CUDA)
    )
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
    wanted = Requirement("torch", torch.version)
    alone = cpu_build(wanted, [REPOSITORY_DIR / OF_GATEWAY, REPOSITORY_DIR / OF_NEURON])
    assert alone.startswith(f"torch=={torch.version}+cpu \\\n")
    assert alone.count("--hash=sha256:") == len(torch.hashes)
    assert cpu_build(wanted, [REPOSITORY_DIR / OF_GATEWAY]) == ""


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


def test_which_locks_an_install_is_checked_by(tmp_path: Path) -> None:
    found = {name: locks_of(REPOSITORY_DIR / name, {}) for name in (*LOCKS_OF, "other.txt")}
    assert [path.name for path in found["requirements.txt"]] == [OF_GATEWAY, OF_NEURON]
    assert [path.name for path in found["requirements-gateway.txt"]] == [OF_GATEWAY]
    assert found["other.txt"] == ()
    assert locks_of(GATEWAY, {"HELEXA_REQUIRE_HASHES": "off"}) == ()
    assert locks_of(tmp_path / "requirements.txt", {}) == (), "a checkout without lock files"


def test_a_pin_that_somebody_changed_is_not_locked() -> None:
    (django,) = (one for one in locked_in(REPOSITORY_DIR / OF_GATEWAY) if one.name == "django")
    locks = [REPOSITORY_DIR / OF_GATEWAY]
    assert not_locked([Requirement("Django", django.version)], locks) == []
    (hub,) = (one for one in locked_in(locks[0]) if one.name == "huggingface-hub")
    assert not_locked([Requirement("huggingface_hub", hub.version)], locks) == []
    changed = Requirement("Django", "1.0")
    assert not_locked([changed], locks) == [changed]


RESOLVE = """#!/bin/sh
# In the place of uv: the lock that it would resolve is there already, by the name asked for.
while [ "$#" -gt 1 ]; do
    if [ "$1" = --output-file ]; then out="$2"; fi
    shift
done
cp "$1.resolved" "$out"
"""


def test_the_command_locks_each_package_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (f"{name}==1.0 \\\n    --hash=sha256:{'a' * 64}\n" for name in ("one", "two"))
    (tmp_path / "requirements.txt.resolved").write_text(one + two)
    (tmp_path / "requirements-gateway.txt.resolved").write_text(one)
    (tmp_path / "uv").write_text(RESOLVE)
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("sys.argv", ["lock"])
    main = runpy.run_path(str(REPOSITORY_DIR / "packaging" / "lock"))["main"]
    monkeypatch.setitem(main.__globals__, "ROOT", tmp_path)
    for _ in ("none was there", "those are kept"):
        assert main() == 0
        assert [pin.name for pin in locked_in(tmp_path / OF_GATEWAY)] == ["one"]
        assert [pin.name for pin in locked_in(tmp_path / OF_NEURON)] == ["two"]
    assert f"{OF_CUDA}: 0 packages" in capsys.readouterr().out
