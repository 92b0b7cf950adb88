"""Which rows a run on a card has, who answers them, and who is loaded beside whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.cuda.plan import (
    COLUMNS,
    DEVICE_BYTES,
    MEASURES,
    WEIGHTS,
    Place,
    PlannedSubject,
    chosen_rows,
    planned_subjects,
    stages,
    weight_bytes,
)
from benchmarks.cuda.random_model import ALL_SHAPES

PLACE = Place(device="cuda:0", folder=Path("weights"), num_threads=4, data_dir=Path("data"))
ROWS = chosen_rows(["8B", "1.7B"], WEIGHTS, MEASURES)


def planned(*columns: str) -> list[PlannedSubject]:
    return planned_subjects("8B", ROWS, columns, PLACE)  # type: ignore[arg-type]


def test_every_shape_and_kind_of_weights_decodes_at_1_and_32_and_prefills() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) == 2 * 3 * 3
    assert names[0] == "1.7B bf16, decode, 1 at once"
    assert {"8B q4, decode, 32 at once", "8B q8, prefill, 4096 tokens"} <= set(names)


def test_rows_are_narrowed_by_each_choice() -> None:
    (row,) = chosen_rows(["tiny"], ["q8"], ["prefill"])
    assert row.name == "tiny q8, prefill, 256 tokens"
    assert row.question == {"measure": "prefill", "num_tokens": 256}


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
    (vllm,) = planned_subjects("8B", ROWS, ["vllm"], with_vllm)
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


def test_weights_take_what_their_format_takes() -> None:
    config = ALL_SHAPES["8B"]
    dense, eight, four = (weight_bytes(config, weights) for weights in WEIGHTS)
    assert round(dense / 1e9, 1) == 16.1  # Llama 3.1 8B: 8.03 thousand million weights
    assert round(eight / dense, 3) == round(34 / 64, 3)
    assert 20 / 64 < four / dense < eight / dense
