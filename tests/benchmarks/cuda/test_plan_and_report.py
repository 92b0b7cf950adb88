"""Which rows a run on a card has, who answers them and who is loaded beside whom; the shares of a
device's best from readings that were made up, and the report that has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cuda.plan import (
    COLUMNS,
    DEVICE_BYTES,
    MEASURES,
    WEIGHTS,
    Place,
    PlannedSubject,
    Row,
    chosen_rows,
    planned_subjects,
    stages,
)
from benchmarks.cuda.report import (
    DEVICE,
    Limits,
    print_table,
    report_lines,
    share_of_limit,
)
from benchmarks.run import Results
from tests.cases import each_case

LIMITS = Limits(copy_bytes_per_s=4e12, matmul_flops_per_s=800e12)
ROWS = {row.name: row for row in chosen_rows(["1.7B", "8B"], WEIGHTS, MEASURES)}

PROJECTIONS_8B = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
HEAD_8B = 128256 * 4096
KV_BYTES_8B = 2 * 32 * 8 * 128 * 2
MEAN_CONTEXT = 512 + 64


PLACE = Place(device="cuda:0", folder=Path("weights"), num_threads=4, data_dir=Path("data"))


def planned(*columns: str) -> list[PlannedSubject]:
    return planned_subjects("8B", list(ROWS.values()), columns, PLACE)  # type: ignore[arg-type]


def test_rows_are_narrowed_by_each_choice() -> None:
    (row,) = chosen_rows(["tiny"], ["q8"], ["prefill"])
    assert row.name == "tiny q8, prefill, 256 tokens"
    assert row.measurement.question == {"measure": "prefill", "num_tokens": 256}


def test_an_engine_for_each_kind_of_weights_and_transformers_for_the_dense_ones() -> None:
    *engines, transformers = planned(*COLUMNS)
    assert [engine.options["quantization"] for engine in engines] == ["none", "q8", "q4"]
    assert all(row.shape == "8B" for engine in engines for row in engine.rows)
    assert [row.name for row in transformers.rows] == [
        "8B bf16, decode, 1 at once",
        "8B bf16, decode, 32 at once",
    ]


def test_vllm_is_measured_where_an_interpreter_has_it() -> None:
    with_vllm = replace(PLACE, vllm_python="/opt/vllm/bin/python")
    (vllm,) = planned_subjects("8B", list(ROWS.values()), ["vllm"], with_vllm)
    assert (vllm.kind, vllm.options["python"]) == ("vllm_cpu:folder", "/opt/vllm/bin/python")
    assert [row.measure for row in vllm.rows] == ["decode", "decode", "prefill"]
    assert planned("vllm") == []


def test_who_has_no_row_is_not_opened() -> None:
    rows = chosen_rows(["8B"], ["q4"], ["prefill"])
    (engine,) = planned_subjects("8B", rows, COLUMNS, PLACE)
    assert engine.label == "helexa, 8B q4"
    assert planned_subjects("1.7B", rows, COLUMNS, PLACE) == []
    assert [subject.column for subject in planned("transformers")] == ["transformers"]


def test_all_are_loaded_together_where_there_is_room_and_else_one_by_one() -> None:
    subjects = planned(*COLUMNS)
    together_bytes = DEVICE_BYTES + sum(subject.need_bytes for subject in subjects)
    assert stages(subjects, together_bytes) == [subjects]
    assert stages(subjects, together_bytes - 1) == [[subject] for subject in subjects]
    assert stages([], 0) == []


def at_the_limit(row: Row, step_bytes: float) -> float:
    """The rate at which the device would copy a step's bytes in a step."""
    return row.size * LIMITS.copy_bytes_per_s / step_bytes


@each_case(
    ("weights", "per_weight", "per_head_weight"),
    [("bf16", 2, 2), ("q8", 34 / 32, 34 / 32), ("q4", 20 / 32, 34 / 32)],
)
@each_case("size", [1, 32])
def test_a_decode_step_reads_projections_head_and_contexts(
    weights: str, per_weight: float, per_head_weight: float, size: int
) -> None:
    row = ROWS[f"8B {weights}, decode, {size} at once"]
    step_bytes = PROJECTIONS_8B * per_weight + HEAD_8B * per_head_weight
    step_bytes += size * MEAN_CONTEXT * KV_BYTES_8B
    best = at_the_limit(row, step_bytes)
    assert share_of_limit(row, best, LIMITS) == pytest.approx(1)
    assert share_of_limit(row, best / 4, LIMITS) == pytest.approx(0.25)


def test_a_prompt_multiplies_its_tokens_by_every_projection() -> None:
    row = ROWS["8B q4, prefill, 4096 tokens"]
    best = LIMITS.matmul_flops_per_s / (2 * PROJECTIONS_8B)
    assert share_of_limit(row, best / 2, LIMITS) == pytest.approx(0.5)


def test_the_report_has_every_row_and_names_the_unmeasured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dense, other = ROWS["8B bf16, decode, 32 at once"], ROWS["8B q4, decode, 1 at once"]
    results = Results({DEVICE: "a card", "helexa, 8B bf16": "engine in words"})
    for rate in (900.0, 1000.0, 1200.0):
        results.add(dense.name, "tok/s", "helexa", rate)
    results.add(dense.name, "tok/s", "transformers", 400.0)
    lines = report_lines(results, [dense, other], LIMITS)
    assert (lines[0].helexa_tokens_per_s, lines[0].ratio) == (1000, 2.5)
    assert lines[0].share == share_of_limit(dense, 1000, LIMITS)
    assert (lines[1].helexa_tokens_per_s, lines[1].share, lines[1].ratio) == (None, None, None)
    results.ended["helexa, 8B q4"] = "it ended"
    print_table(results, [dense, other], lines, LIMITS)
    printed = capsys.readouterr().out
    assert "2.50x" in printed
    assert "1.50x" in printed
    assert "60%" in printed
    assert "engine in words" in printed
    assert "helexa, 8B q4 is not measured: it ended" in printed
