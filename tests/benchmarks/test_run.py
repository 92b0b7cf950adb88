"""The bench's own logic: which subjects and rows a command line chooses, and what is made of their
readings, on subjects that answer at once."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from benchmarks import command
from benchmarks.command import KINDS, Selection, arguments_parser, select
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
from benchmarks.subject import SubjectError, answer
from benchmarks.workload import (
    DECODE_PROMPT_TOKENS,
    FIRST_ORDINARY_TOKEN_ID,
    LAST_ORDINARY_TOKEN_ID,
    prompts_of,
    tokens_per_s_together,
)
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


@pytest.fixture
def pair() -> tuple[FakeSubject, FakeSubject]:
    """They note what they are asked in one list."""
    asked: list[tuple[str, int]] = []
    return FakeSubject("ours", 30.0, asked), FakeSubject("forgetful", 10.0, asked)


Pair = tuple[FakeSubject, FakeSubject]


def test_subjects_alternate_on_the_same_prompts(pair: Pair) -> None:
    """Who comes first comes last in the next round."""
    results_of(1, *pair)
    asked = pair[0].asked
    pairs = list(zip(asked[::2], asked[1::2], strict=True))
    assert all(seed == other for (_, seed), (_, other) in pairs)
    num_rows = len(list(measurements()))
    assert [first for (first, _), _ in pairs] == ["forgetful"] * num_rows + ["ours"] * num_rows
    assert len({seed for _, seed in asked}) == 2 * num_rows


def test_the_first_round_is_not_kept_and_medians_are_of_the_rest(pair: Pair) -> None:
    """A subject without an answer has a gap. The table and the JSON agree."""
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
    rows = as_json(results)["measurements"]
    assert set(rows) == set(results.readings)
    assert all(row["median"]["ours"] for row in rows.values())


def test_a_subject_that_cannot_be_opened_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_one(kind: str, *_: object, **__: object) -> FakeSubject:
        if kind == "llama_cpp":
            raise SubjectError("llama_cpp ended by SIGILL")
        return FakeSubject(kind, 30.0, [])

    monkeypatch.setattr(command, "_open_subject", open_one)
    arguments = arguments_parser().parse_args(["--rounds", "1"])
    selection = Selection(["helexa_engine", "llama_cpp"], {}, list(measurements())[:1], [], [])
    results = command._measure(arguments, selection, Console(file=io.StringIO()))
    assert list(results.subjects) == ["helexa_engine"]
    assert results.ended == {"llama_cpp": "llama_cpp ended by SIGILL while it was opened"}


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    results = Results({"ours": "", "theirs": ""})
    for ours, theirs in ((10.0, 5.0), (8.0, 2.0), (3.0, 1.0)):
        results.add("decode", "tok/s", "ours", ours)
        results.add("decode", "tok/s", "theirs", theirs)
    assert results.median_ratio("decode", "ours", "theirs") == 3.0
    assert results.median_ratio("decode", "ours", "nobody") is None


def test_where_a_subject_ends_the_others_go_on() -> None:
    chosen = list(measurements())[:2]
    subjects = FakeSubject("mortal", 30.0, []), FakeSubject("ours", 10.0, [])
    results = results_of(2, *subjects, rows=chosen)
    assert results.ended == {"mortal": f"mortal ended by SIGILL, asked for {chosen[1].name}"}
    assert results.readings[chosen[0].name] == {"mortal": [30.0], "ours": [10.0, 20.0]}
    assert results.readings[chosen[1].name] == {"ours": [10.0, 20.0]}


def test_memory_is_compared_without_our_interpreter() -> None:
    results = Results({"helexa_engine": "ours", "llama_cpp": "theirs"})
    results.add(MEMORY_ROW, "MiB", "helexa_engine", 900.0)
    assert memory_over_llama_cpp(results) is None
    results.add(MEMORY_ROW, "MiB", "llama_cpp", 500.0)
    results.add(INTERPRETER_ROW, "MiB", "helexa_engine", 300.0)
    assert memory_over_llama_cpp(results) == 1.2
    text = io.StringIO()
    print_table(results, Console(file=text, width=200))
    assert "multiples of llama.cpp's: 1.20 (bound: 1.5)" in text.getvalue()


class Subject:
    """Its time to a first token is a second, and half of it for a prompt that it has seen."""

    keeps_prefixes = True

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    def decode(self, prompts: list[list[int]]) -> float:
        self.prompts += prompts
        return 7.0

    def first_token_s(self, prompt: list[int]) -> float | None:
        self.prompts.append(prompt)
        return 1 / self.prompts.count(prompt)

    def own(self, seed: int) -> int:
        return seed


def test_prompts_are_repeatable_and_ordinary_and_answers_made_of_times() -> None:
    first, second = prompts_of(5, 2, 100)
    assert [first, second] == prompts_of(5, 2, 100) and first != second
    assert prompts_of(6, 1, 100) != [first]
    assert all(FIRST_ORDINARY_TOKEN_ID <= token <= LAST_ORDINARY_TOKEN_ID for token in first)
    subject: Any = Subject()

    def asked(measure: str, **question: Any) -> object:
        return answer(subject, {"measure": measure, "seed": 5, **question}, None)

    assert asked("decode", concurrency=3) == 7.0
    assert subject.prompts == prompts_of(5, 3, DECODE_PROMPT_TOKENS)
    assert asked("prefill", num_tokens=100) == 100.0
    assert asked("time_to_first_token", num_tokens=200) == (1.0, 0.5)
    assert asked("own") == 5
    assert (asked("memory"), asked("interpreter_memory")) == (None, None), "it is a client"
    assert answer(subject, {"measure": "interpreter_memory"}, 1.5) == 1.5
    memory = answer(subject, {"measure": "memory"}, 1.5)
    assert isinstance(memory, float) and memory > 1
    Subject.keeps_prefixes = False
    assert asked("time_to_first_token", num_tokens=9) is None
    subject.first_token_s = lambda prompt: None
    assert asked("prefill", num_tokens=9) is None


def test_a_rate_counts_what_streams_did_together() -> None:
    """All but their first tokens; what one did alone is left out."""
    assert tokens_per_s_together([[1.0, 2.0, 3.0]] * 8) == pytest.approx(8.0)
    ahead, behind = [0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0]
    assert tokens_per_s_together([ahead, behind]) == pytest.approx(4 / 2.0)
    with pytest.raises(ValueError, match="never decoding together"):
        tokens_per_s_together([[0.0, 1.0], [2.0, 3.0]])


def chosen_by(*words: str) -> Selection:
    return select(arguments_parser().parse_args(words))


def test_rows_are_chosen_by_how_they_begin() -> None:
    everything = chosen_by()
    assert everything.rows == list(measurements())
    assert everything.own_rows == ["bookkeeping", "quality"]
    assert {*everything.kinds, *everything.missing} == set(KINDS)
    selection = chosen_by("--only", "decode, 8", "memory")
    names = [row.name for row in selection.rows]
    assert names == ["decode, 8 at once", "memory, resident", "memory, interpreter"]
    assert selection.own_rows == []
    without_peers = chosen_by("--only", "bookkeeping")
    assert (without_peers.kinds, without_peers.missing) == ([], {})
    with pytest.raises(ValueError, match="'decode, 7'"):
        chosen_by("--only", "decode, 7")


def test_checkouts_beside_this_one_have_names_of_their_own(tmp_path: Path) -> None:
    assert chosen_by("--beside", str(REPOSITORY_DIR)).beside == [REPOSITORY_DIR]
    assert chosen_by("--beside", str(REPOSITORY_DIR), "--only", "quality").beside == []
    with pytest.raises(ValueError, match="have one name"):
        chosen_by("--beside", str(REPOSITORY_DIR), f"/elsewhere/{REPOSITORY_DIR.name}")
    with pytest.raises(ValueError, match=f"{tmp_path} is no checkout"):
        chosen_by("--beside", str(tmp_path))


def test_subjects_keep_the_order_of_the_columns_and_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first start installs transformers and not accelerate."""
    both = ("--subjects", "helexa_http", "helexa_engine")
    assert chosen_by(*both).kinds == ["helexa_engine", "helexa_http"]
    assert chosen_by(*both, "--no-http").kinds == ["helexa_engine"]
    without = chosen_by("--subjects", "vllm", "--vllm-python", str(tmp_path / "none"))
    assert without.kinds == []
    assert "no interpreter" in without.missing["vllm"]
    assert chosen_by("--subjects", "vllm", "--vllm-python", sys.executable).kinds
    monkeypatch.setattr(
        "benchmarks.command.importlib.util.find_spec",
        lambda name: None if name in ("accelerate", "llama_cpp") else object(),
    )
    selection = chosen_by("--subjects", "transformers_generate", "llama_cpp")
    assert selection.kinds == []
    needs = "pip install accelerate brings what it needs"
    assert selection.missing["transformers_generate"] == needs
    assert "llama-cpp-python" in selection.missing["llama_cpp"]


def test_the_device_and_the_weights_choose_who_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = chosen_by("--model", "qwen3-8b", "--weights", "q4")
    assert "GGUF" in dense.missing["llama_cpp"]
    assert "default model" in dense.missing["helexa_http"]
    with pytest.raises(ValueError, match=r"needs a dense shape.*qwen3-8b"):
        chosen_by("--weights", "q4")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device"):
        chosen_by("--device", "cuda:0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    on_card = chosen_by("--device", "cuda:0")
    assert on_card.kinds[0] == "helexa_engine"
    assert "--weights bf16" in on_card.missing["transformers_continuous"]
