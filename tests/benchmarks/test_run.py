"""The bench's own logic: which subjects and rows a command line chooses, and what is made of their
readings, on subjects that answer at once."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from benchmarks import ports
from benchmarks.command import Selection, arguments_parser, select
from benchmarks.report import as_json, memory_over_llama_cpp, print_table
from benchmarks.run import (
    INTERPRETER_ROW,
    MEMORY_ROW,
    Measurement,
    Results,
    measurements,
    run,
    warm_name,
)
from benchmarks.subject import SubjectError
from benchmarks.workload import tokens_per_s_together
from helexa_site.program import REPOSITORY_DIR


class FakeSubject:
    """Stands where ``SubjectProcess`` is; rates grow with the round, so that medians show."""

    def __init__(self, kind: str, factor: float, asked: list[tuple[str, int]]) -> None:
        self.kind = kind
        self.description = f"{kind} of this test"
        self._factor = factor
        self.asked = asked

    def close(self) -> None: ...

    def ask(self, **question: Any) -> Any:
        self.asked.append((self.kind, question["seed"]))
        if self.kind == "mortal" and question["seed"] > 1000:
            raise SubjectError("mortal ended by SIGILL")
        if question["measure"] == "time_to_first_token":
            return None if self.kind == "forgetful" else [2.0 / self._factor, 1.0 / self._factor]
        round_number = question["seed"] // 1000
        return self._factor * round_number


def results_of(
    num_rounds: int, *subjects: FakeSubject, rows: list[Measurement] | None = None
) -> Results:
    results = Results({subject.kind: subject.description for subject in subjects})
    chosen = rows or list(measurements())
    run(subjects, results, measurements=chosen, num_rounds=num_rounds, on_reading=Mock())
    return results


def test_subjects_alternate_and_medians_are_of_all_rounds_but_the_first() -> None:
    """A subject without an answer has a gap. The table and the JSON agree."""
    asked: list[tuple[str, int]] = []
    pair = FakeSubject("ours", 30.0, asked), FakeSubject("forgetful", 10.0, asked)
    results_of(1, *pair)
    num_rows = len(list(measurements()))
    assert all(seed == other for (_, seed), (_, other) in zip(asked[::2], asked[1::2], strict=True))
    assert [kind for kind, _ in asked[::2]] == ["forgetful"] * num_rows + ["ours"] * num_rows
    results = results_of(3, *pair)
    name = next(measurements()).name
    assert results.readings[name]["ours"] == [30.0, 60.0, 90.0]
    assert results.median(name, "ours") == 60.0
    cold = next(row.name for row in measurements() if row.name.startswith("TTFT"))
    assert results.median(cold, "forgetful") is None
    assert results.median(warm_name(cold), "ours") is not None
    text = io.StringIO()
    print_table(results, Console(file=text, width=200))
    assert "3.00x" in text.getvalue()
    assert as_json(results)["measurements"].keys() == results.readings.keys()


def test_ratios_of_rounds_and_of_memory_and_a_subject_that_ends() -> None:
    results = Results({"helexa_engine": "ours", "llama_cpp": "theirs"})
    for ours, theirs in ((10.0, 5.0), (8.0, 2.0), (3.0, 1.0)):
        results.add("decode", "tok/s", "helexa_engine", ours)
        results.add("decode", "tok/s", "llama_cpp", theirs)
    assert results.median_ratio("decode", "helexa_engine", "llama_cpp") == 3.0
    assert results.median_ratio("decode", "helexa_engine", "nobody") is None
    results.add(MEMORY_ROW, "MiB", "helexa_engine", 900.0)
    assert memory_over_llama_cpp(results) is None
    results.add(MEMORY_ROW, "MiB", "llama_cpp", 500.0)
    results.add(INTERPRETER_ROW, "MiB", "helexa_engine", 300.0)
    assert memory_over_llama_cpp(results) == 1.2, "without our interpreter"
    chosen = list(measurements())[:2]
    subjects = FakeSubject("mortal", 30.0, []), FakeSubject("ours", 10.0, [])
    results = results_of(2, *subjects, rows=chosen)
    assert results.ended == {"mortal": f"mortal ended by SIGILL, asked for {chosen[1].name}"}
    assert results.readings[chosen[0].name] == {"mortal": [30.0], "ours": [10.0, 20.0]}
    assert results.readings[chosen[1].name] == {"ours": [10.0, 20.0]}
    assert tokens_per_s_together([[1.0, 2.0, 3.0]] * 8) == pytest.approx(8.0)
    ahead, behind = [0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0]
    assert tokens_per_s_together([ahead, behind]) == pytest.approx(4 / 2.0)
    with pytest.raises(ValueError, match="never decoding together"):
        tokens_per_s_together([[0.0, 1.0], [2.0, 3.0]])


def chosen_by(*words: str) -> Selection:
    return select(arguments_parser().parse_args(words))


def test_rows_and_subjects_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_by().rows == list(measurements())
    selection = chosen_by("--only", "decode, 8", "memory")
    names = [row.name for row in selection.rows]
    assert names == ["decode, 8 at once", "memory, resident", "memory, interpreter"]
    assert selection.own_rows == []
    assert chosen_by("--beside", str(REPOSITORY_DIR)).beside == [REPOSITORY_DIR]
    for words, reason in (
        (("--only", "decode, 7"), "'decode, 7'"),
        (("--beside", str(REPOSITORY_DIR), f"/else/{REPOSITORY_DIR.name}"), "have one name"),
        (("--beside", str(tmp_path)), f"{tmp_path} is no checkout"),
    ):
        with pytest.raises(ValueError, match=reason):
            chosen_by(*words)
    both = ("--subjects", "helexa_http", "helexa_engine")
    assert chosen_by(*both).kinds == ["helexa_engine", "helexa_http"]
    assert chosen_by(*both, "--no-http").kinds == ["helexa_engine"]
    without = chosen_by("--subjects", "vllm", "--vllm-python", str(tmp_path / "none"))
    assert without.kinds == [] and "no interpreter" in without.missing["vllm"]
    monkeypatch.setattr(
        "benchmarks.command.importlib.util.find_spec",
        lambda name: None if name in ("accelerate", "llama_cpp") else object(),
    )
    selection = chosen_by("--subjects", "transformers_generate", "llama_cpp")
    assert selection.kinds == []
    needs = "pip install accelerate brings what it needs"
    assert selection.missing["transformers_generate"] == needs
    assert "llama-cpp-python" in selection.missing["llama_cpp"]


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_port, other_port = ports.free_port(), ports.free_port()
    with (
        socket.create_server((ports.HOST, 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        assert server.getsockname()[1] not in ports.PORTS
        assert connection.getsockname()[1] not in ports.PORTS, "connections get others"
    monkeypatch.setattr(ports, "PORTS", [taken_port, other_port])
    with socket.create_server((ports.HOST, taken_port)):
        assert {ports.free_port() for _ in range(20)} == {other_port}
