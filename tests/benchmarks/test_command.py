"""The command line's choice of subjects and rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.command import KINDS, Selection, arguments_parser, select
from benchmarks.run import measurements


def chosen_by(*words: str) -> Selection:
    return select(arguments_parser().parse_args(words))


def test_without_a_word_every_row_is_measured() -> None:
    selection = chosen_by()
    assert selection.rows == list(measurements())
    assert selection.own_rows == ["bookkeeping", "masks"]
    assert {*selection.kinds, *selection.missing} == set(KINDS)


def test_rows_are_chosen_by_how_they_begin() -> None:
    selection = chosen_by("--only", "decode, 8", "memory")
    names = [row.name for row in selection.rows]
    assert names == ["decode, 8 at once", "memory, resident", "memory, interpreter"]
    assert selection.own_rows == []


def test_a_row_without_peers_opens_no_subject() -> None:
    selection = chosen_by("--only", "bookkeeping")
    assert (selection.kinds, selection.missing) == ([], {})


def test_a_row_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'decode, 7'"):
        chosen_by("--only", "decode, 7")


def test_subjects_keep_the_order_of_the_columns() -> None:
    assert chosen_by("--subjects", "helexa_http", "helexa_engine").kinds == [
        "helexa_engine",
        "helexa_http",
    ]
    assert chosen_by("--subjects", "helexa_http", "helexa_engine", "--no-http").kinds == [
        "helexa_engine"
    ]


def test_vllm_needs_an_interpreter_that_can_be_run(tmp_path: Path) -> None:
    without = chosen_by("--subjects", "vllm_cpu", "--vllm-python", str(tmp_path / "none"))
    assert without.kinds == []
    assert "no interpreter" in without.missing["vllm_cpu"]
    assert chosen_by("--subjects", "vllm_cpu", "--vllm-python", sys.executable).kinds == [
        "vllm_cpu"
    ]


def test_transformers_without_accelerate_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first start leaves it so, since it installs one and not the other."""
    monkeypatch.setattr(
        "benchmarks.command.importlib.util.find_spec",
        lambda name: None if name in ("accelerate", "llama_cpp") else object(),
    )
    selection = chosen_by(
        "--subjects", "transformers_generate", "transformers_continuous", "llama_cpp"
    )
    assert selection.kinds == []
    needs = "pip install accelerate brings what it needs"
    assert selection.missing["transformers_generate"] == needs
    assert selection.missing["transformers_continuous"] == needs
    assert "llama-cpp-python" in selection.missing["llama_cpp"]
