"""The first hour on a card: what it plans for which card, where it resumes, what its table has."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.first_hour.command import Result, keep_state, open_parts, read_state, run_part
from benchmarks.first_hour.parts import PART_LIMIT_S, Host, Part, make, parts_of

MUCH = 10**12


CARD = Host(device="cuda:0", card_bytes=MUCH, disk_bytes=MUCH, data_dir=Path("data"), num_threads=2)
TRIAL = replace(CARD, device="cpu", card_bytes=0)


def test_every_part_can_be_run_and_ends_within_eight_minutes() -> None:
    """Each test that needs a card is in one; those that would all be skipped have not passed."""
    trial = {part.name: part for part in parts_of(TRIAL)}
    tests = [part for name, part in trial.items() if name.startswith("tests of")]
    assert len(tests) == 4 and all("skipped" in part.left_out for part in tests)
    assert not trial["doctor"].left_out
    parts = {part.name: part for part in parts_of(CARD)}
    assert len(parts) == len(parts_of(CARD)) and "tests of attention" in parts
    for part in parts.values():
        assert not part.left_out and 0 < part.limit_s <= PART_LIMIT_S == 8 * 60
        assert part.command[0] == "-m"
        assert importlib.util.find_spec(part.command[1]) is not None, part.command
    for name in ("exactness", "graphed", "packed", "linear"):
        *_, marks, path = parts[f"tests of {name}"].command
        assert marks == "gpu" and path.endswith(f"test_{name}.py")


def part(name: str, code: str = "pass", limit_s: int = 60, left_out: str = "") -> Part:
    return Part(name=name, command=("-c", code), limit_s=limit_s, left_out=left_out)


def test_a_run_resumes_after_the_parts_that_ended(tmp_path: Path) -> None:
    parts = [part("a"), part("b"), part("c", left_out="no room"), part("d")]
    assert read_state(tmp_path) == {}
    ended = Result(outcome="passed", seconds=1, summary="", log="")
    kept = {"a": ended, "b": replace(ended, outcome="timed out")}
    keep_state(tmp_path, kept)
    results = read_state(tmp_path)
    assert results == kept
    for only, again, expected in (
        ([], [], ["d"]),
        ([], ["failed"], ["b", "d"]),
        (["a", "b"], ["b"], ["b"]),
    ):
        found = open_parts(parts, results, only=only, again=again)
        assert [one.name for one in found] == expected, (only, again)
    (tmp_path / "state.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"state\.json is no state"):
        read_state(tmp_path)


@pytest.mark.slow
def test_a_load_on_the_cpu(tmp_path: Path, native_cache_dir: Path) -> None:
    """One part of all, whole: its engine is a process of its own, as on a card."""
    make("packed", "tiny-dense", tmp_path, "cpu")
    cache = tmp_path / "engine" / "cache"
    cache.mkdir(parents=True)
    (cache / "native").symlink_to(native_cache_dir)
    tiny = replace(TRIAL, data_dir=tmp_path)
    (load,) = [part for part in parts_of(tiny) if part.name == "load of packed tiny-dense"]
    environment = os.environ | {"HELEXA_DATA_DIR": str(tmp_path / "engine")}
    found = run_part(load, tmp_path / "load.1", environment, "")
    assert found.outcome == "passed", (tmp_path / "load.1.err").read_text()
    assert "answers_alike yes" in found.summary
