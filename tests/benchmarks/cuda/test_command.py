"""A whole run where there is no card: the same subjects on a tiny shape, in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cuda import command
from benchmarks.cuda.command import CardRun
from benchmarks.cuda.plan import (
    COLUMNS,
    MEASURES,
    WEIGHTS,
    Place,
    chosen_rows,
    planned_subjects,
)
from benchmarks.cuda.random_model import TINY, make_folder
from benchmarks.run import Results
from benchmarks.subject import SubjectError, opener


class InProcess:
    """Stands where ``SubjectProcess`` is, without a process to start."""

    def __init__(self, kind: str, options: dict[str, str]) -> None:
        self._subject: Any = opener(kind)(**options)
        self.description: str = self._subject.describe()

    def ask(self, *, measure: str, **question: Any) -> Any:
        return getattr(self._subject, measure)(**question)

    def close(self) -> None:
        self._subject.close()


@pytest.fixture
def data_dir(
    tmp_path: Path, native_cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Yields a folder with a tiny model made. Subjects set this process's threads, which are put
    back."""
    make_folder(TINY, tmp_path / "random" / "tiny", "cpu")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "native").symlink_to(native_cache_dir)
    monkeypatch.setenv("HELEXA_ENGINE_THREADS", os.environ.get("HELEXA_ENGINE_THREADS", ""))
    num_threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(num_threads)


@pytest.mark.slow
def test_every_row_is_measured(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--shapes", "tiny", "--rounds", "1", "--threads", "1", "--json"]
    code = command.main([*words, "--data-dir", str(data_dir)], InProcess)
    report = json.loads(capsys.readouterr().out)
    assert (code, report["not_measured"]) == (0, {})
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == [row.name for row in chosen_rows(["tiny"], WEIGHTS, MEASURES)]
    assert all(row["helexa_tokens_per_s"] > 0 and row["share"] > 0 for row in rows.values())
    compared = [name for name, row in rows.items() if row["ratio"] is not None]
    assert compared == ["tiny bf16, decode, 1 at once", "tiny bf16, decode, 32 at once"]
    assert min(report["limits"].values()) > 0
    kept_bits = [report["subjects"][f"helexa, tiny {weights}"] for weights in ("q8", "q4")]
    assert ["8 bits" in kept_bits[0], "4 bits" in kept_bits[1]] == [True, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) != 0
    assert capsys.readouterr().err.startswith("error: no CUDA device")


class Scripted:
    """Answers 100 tok/s and the like, and breaks when it was asked as often as it may be."""

    def __init__(self, kind: str, options: dict[str, str], *, answers: int = 1000) -> None:
        self.description = f"{kind} of this test"
        self.seeds: list[object] = []
        self.is_closed = False
        self._answers = answers

    def ask(self, *, measure: str, seed: int = 0, **question: Any) -> Any:
        self.seeds.append(seed)
        if len(self.seeds) > self._answers:
            raise SubjectError(f"{self.description} ended with exit code 1")
        return 10**12 if measure == "free_bytes" else 100.0 + seed

    def close(self) -> None:
        self.is_closed = True


class Openings:
    """Opens scripted subjects: transformers not at all, the engine of q8 for one round."""

    def __init__(self) -> None:
        self.opened: dict[str, Scripted] = {}

    def __call__(self, kind: str, options: dict[str, str]) -> Scripted:
        if kind == "transformers_continuous:folder":
            raise SubjectError("transformers ended with exit code 1")
        name = options.get("quantization", kind)
        self.opened[name] = Scripted(kind, options, answers=4 if name == "q8" else 1000)
        return self.opened[name]


def test_a_subject_that_breaks_is_left_out_and_the_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(TINY, tmp_path / "random" / "tiny", "cpu")
    words = ["--device", "cpu", "--shapes", "tiny", "--rounds", "2", "--json"]
    openings = Openings()
    code = command.main([*words, "--data-dir", str(tmp_path)], openings)
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    assert set(report["not_measured"]) == {"helexa, tiny q8", "transformers, tiny bf16"}
    readings = report["readings"]
    # Rows of q8 are the fourth to the sixth; it broke at its second question of the first round.
    assert readings["tiny q8, decode, 1 at once"]["helexa"] == [1105]
    assert "tiny q8, decode, 32 at once" not in readings
    assert readings["tiny q4, decode, 1 at once"]["helexa"] == [1108, 2108]
    assert all(subject.is_closed for subject in openings.opened.values())


def test_what_was_read_is_reported_when_the_device_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(TINY, tmp_path / "random" / "tiny", "cpu")

    def open_process(kind: str, options: dict[str, str]) -> Scripted:
        return Scripted(kind, options, answers=5 if kind == "device_limits" else 1000)

    words = ["--device", "cpu", "--shapes", "tiny", "--rounds", "3", "--json"]
    code = command.main([*words, "--data-dir", str(tmp_path)], open_process)
    report = json.loads(capsys.readouterr().out)
    assert (code, list(report["not_measured"])) == (1, ["device"])
    assert report["readings"]["tiny q4, decode, 1 at once"]["helexa"] == [1108, 2108, 3108]


def test_subjects_of_different_stages_have_the_same_prompts() -> None:
    """A row's prompts follow from its place among all rows, with any other models loaded."""
    rows = chosen_rows(["tiny"], WEIGHTS, MEASURES)
    place = Place(device="cpu", folder=Path("f"), num_threads=1, data_dir=Path("d"))
    seeds = []
    for subject in planned_subjects("tiny", rows, COLUMNS, place):
        opened = Scripted(subject.kind, subject.options)
        card = CardRun(
            device=Scripted("device_limits", {}),
            open_process=lambda kind, options, opened=opened: opened,  # type: ignore[misc]
            rows=rows,
            num_rounds=1,
            report=lambda text: None,
            results=Results({}),
        )
        card.run_stage([subject])
        seeds.append(opened.seeds)
    assert seeds[0] == [2, 3, 4, 1002, 1003, 1004]
    assert seeds[1] == [5, 6, 7, 1005, 1006, 1007]
    assert seeds[3] == [2, 3, 1002, 1003]
