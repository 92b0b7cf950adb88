"""The benchmark of packed products: what it tries, how it names the best, and that each column
multiplies by the same weight."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from benchmarks.cuda import product_plan, products
from benchmarks.cuda.product_plan import (
    BF16,
    NUM_ROWS,
    TILES,
    TODAY,
    Reading,
    compile_jobs,
    layer_us,
    letters,
    summary,
)
from benchmarks.cuda.product_weights import (
    BITS,
    LAYER,
    PROJECTIONS,
    Shape,
    another,
    packed_bytes,
    random_weight,
    shapes_of,
)
from benchmarks.cuda.products import Deadline, Subject, measured_lines
from benchmarks.cuda.shapes import SHAPES, TINY, projection_weights
from inference.models.cuda.packed import PackedLinear
from tests.cases import each_case

CPU = torch.device("cpu")


def test_the_projections_are_those_of_the_model() -> None:
    for name, config in SHAPES.items():
        shapes = shapes_of(name, config)
        assert [shape.projection for shape in shapes] == list(PROJECTIONS)
        layer = sum(s.out_features * s.in_features for s in shapes if s.projection in LAYER)
        assert layer * config.num_layers == projection_weights(config)
    assert str(shapes_of("8B", SHAPES["8B"])[0]) == "8B q/k/v 6144 x 4096"


@each_case("kind", BITS)
def test_every_kernel_that_is_measured_is_compiled_before(kind: product_plan.Kind) -> None:
    shapes = shapes_of("8B", SHAPES["8B"])
    jobs = compile_jobs([kind], shapes)
    assert len(jobs) == len(set(jobs))
    tiles = {(job.num_rows, job.tile.outputs, job.tile.stages) for job in jobs if job.tile}
    for num_rows in NUM_ROWS:
        for letter in letters(kind, num_rows):
            tile = TILES[letter]
            assert (max(num_rows, 16), tile.outputs, tile.stages) in tiles
    few_rows = {(job.num_rows, job.in_features) for job in jobs if job.tile is None}
    assert few_rows == {(rows, features) for rows in (8, 16, 32) for features in (4096, 14336)}


def reading(column: str, us: float, projection: str = "o", error: float = 0.001) -> Reading:
    return Reading("q4", Shape("8B", projection, 4096, 4096), 32, column, us, error)


def test_the_best_tile_is_that_of_a_whole_layer() -> None:
    readings = [reading("A", 2.0, name) for name in LAYER]
    readings += [reading("B", 1.0, name) for name in LAYER[:3]] + [reading("B", 9.0, "down")]
    readings += [reading("C", 0.5, "o"), reading(BF16, 3.0, "o"), reading(TODAY, 7.0, "head")]
    assert layer_us(readings, "q4", "8B", 32) == {"A": 8.0, "B": 12.0}
    lines = list(summary(readings, 0.01))
    assert lines == [f"best q4 8B, 32 rows: A 8.0 us a layer (); (4, 32): {TILES['A']}"]


@each_case("error", [0.02, float("nan")])
def test_a_column_that_is_wrong_is_named(error: float) -> None:
    (line,) = summary([reading("A", 1.0, error=error)], 0.01)
    assert line.startswith("WRONG q4 8B o 4096 x 4096, 32 rows, A: off by")


def test_a_copy_is_the_same_weight_elsewhere() -> None:
    linear = PackedLinear(random_weight("q4", 16, 256, CPU), CPU, torch.float32)
    other = another(linear)
    assert torch.equal(other.packed.words, linear.packed.words)
    assert other.packed.words.data_ptr() != linear.packed.words.data_ptr()
    assert packed_bytes(linear) == 16 * 256 * 20 // 32 + 16 * 4


@pytest.fixture
def few_columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One tile and few rows: Triton's interpreter is slow."""
    monkeypatch.setattr(products, "NUM_ROWS", (9,))
    monkeypatch.setattr(products, "letters", lambda kind, num_rows: ("C",))
    monkeypatch.setattr(products, "device_ms", lambda work, device: work() or 1.0)
    return


@pytest.mark.slow
@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("kind", BITS)
@torch.inference_mode()
def test_all_columns_multiply_by_the_same_weight(
    device: torch.device, kind: product_plan.Kind
) -> None:
    torch.manual_seed(1)
    subject = Subject(kind, Shape("8B", "o", 40, 256), device, cold_bytes=20_000)
    assert len(subject.linears) > 1
    readings: list[Reading] = []
    (line,) = measured_lines(subject, 1e9, Deadline(time.monotonic(), 3600), readings)
    assert [found.column for found in readings] == [BF16, TODAY, "C"]
    assert all(found.error <= products.LARGEST_ERROR for found in readings)
    assert "failed" not in line


@pytest.mark.usefixtures("few_columns")
@torch.inference_mode()
def test_out_of_time_no_measurement_begins(device: torch.device) -> None:
    subject = Subject("q4", Shape("8B", "o", 16, 256), device, cold_bytes=1)
    readings: list[Reading] = []
    (line,) = measured_lines(subject, 1e9, Deadline(time.monotonic() - 2, 1), readings)
    assert line == "q4 8B o 16 x 256, 9 rows: unmeasured, out of time"
    assert readings == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_without_a_card_it_reports_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert products.main([]) == 0
    assert capsys.readouterr().out.endswith("unmeasured: no CUDA device\n")


def test_tiny_shapes_are_for_a_machine_without_a_card() -> None:
    assert {s.model for s in products.chosen_shapes(["tiny"])} == {"tiny"}
    assert shapes_of("tiny", TINY)[0].in_features == TINY.hidden_size
