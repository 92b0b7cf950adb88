"""The first hour on a card: what it plans for which card, where it resumes, what its table has."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.first_hour import command
from benchmarks.first_hour.checks import FACTS
from benchmarks.first_hour.command import (
    Result,
    keep_state,
    open_parts,
    read_state,
    run_part,
    summary_of,
)
from benchmarks.first_hour.parts import (
    PART_LIMIT_S,
    Host,
    Part,
    chosen,
    make,
    parts_of,
)

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


def test_a_smaller_card_gets_smaller_models_or_the_reason_why_not() -> None:
    assert chosen("mixture", CARD) == ("qwen3-30b-a3b", "")
    of_24_gb = replace(CARD, card_bytes=24 * 10**9)
    assert chosen("mixture", of_24_gb) == ("qwen3-30b-a3b-16-layers", "")
    of_7_gb = parts_of(replace(CARD, card_bytes=7 * 10**9))
    left_out = {part.name: part.left_out for part in of_7_gb if part.left_out}
    mixture = "mixture qwen3-30b-a3b-16-layers"
    assert {f"load of {mixture}", f"weights of {mixture}", "sleep and wake"} <= set(left_out)
    assert "7.0" in left_out[f"load of {mixture}"] and "are free" in left_out[f"load of {mixture}"]
    _, problem = chosen("packed", replace(CARD, disk_bytes=10**9))
    assert "disk" in problem


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


BENCH = {
    "measurements": {
        "decode, 32 at once": {
            "unit": "tok/s",
            "median": {"helexa_engine": 1234.4, "llama_cpp": 617.2},
        },
        "prefill, 4096 tokens": {"unit": "tok/s", "median": {"vllm": 10.0}},
    },
    "ended": {"vllm": "it ended"},
}


def test_what_a_part_found_in_words() -> None:
    for output, errors, has_passed, expected in (
        (FACTS + json.dumps({"wake_s": 0.27123, "n": 1500}), "", True, "wake_s 0.2712, n 1,500"),
        ("begun\n", "Traceback\nRuntimeError: no image\n", False, "RuntimeError: no image"),
        ("....\n12 passed in 3.1s\n\n", "a warning", True, "12 passed in 3.1s"),
        ("1 failed, 2 passed", "a warning", False, "1 failed, 2 passed"),
        (
            json.dumps(BENCH, indent=2),
            "noise",
            True,
            "decode, 32 at once: 1,234 tok/s, 2.00 of llama_cpp; prefill, 4096 tokens: unmeasured; "
            "vllm is not measured: it ended",
        ),
        ("{torn", "", True, "{torn"),
        ("", "", True, "no output: see the log"),
    ):
        assert summary_of(output, errors, has_passed=has_passed) == expected


@pytest.mark.slow
def test_a_failed_part_is_repeated_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No log is overwritten."""
    mended = tmp_path / "mended"
    code = f"import pathlib, sys; sys.exit(0 if pathlib.Path({str(mended)!r}).exists() else 'bad')"
    parts = [part("first", "print('12 passed')"), part("second", code)]
    monkeypatch.setattr(command, "parts_of", lambda host: parts)

    def run(*more: str) -> int:
        return command.main(["--device", "cpu", "--folder", str(tmp_path / "hour"), *more])

    assert run("--only", "third") == 1
    assert "no part is called third" in capsys.readouterr().err
    assert run("--minutes", "0.5") == 1 and not read_state(tmp_path / "hour")
    assert run() == 1
    ended = read_state(tmp_path / "hour").values()
    found = [(one.outcome, one.summary) for one in ended]
    assert found == [("passed", "12 passed"), ("failed", "bad")]
    mended.touch()
    assert run() == 1, "it has ended"
    assert run("--again", "failed") == 0
    logs = sorted(file.name for file in (tmp_path / "hour" / "logs").glob("*.out"))
    assert logs == ["first.1.out", "second.1.out", "second.2.out"]


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
