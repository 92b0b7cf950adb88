"""The benchmark of stages predicts from what it measured whole, and divides evenly. No models."""

from __future__ import annotations

import pytest

from benchmarks.stages import (
    FEW,
    IN_FLIGHT,
    LINKED,
    MANY,
    ONE_AT_A_TIME,
    WHOLE,
    Measured,
    Row,
    even_split,
    link_ms,
    rows_of,
)
from inference.loading.costs.model_costs import KindBytes, LayerCost, ModelCosts
from tests.cases import each_case


def costs(num_layers: int = 30, head_weights: int = 28_000_000) -> ModelCosts:
    layer = LayerCost(
        weight_bytes=KindBytes(3_500_000, 7_000_000),
        num_weights=3_500_000,
        kv_token_bytes=KindBytes(500, 500),
    )
    return ModelCosts(
        layers=(layer,) * num_layers,
        outer_bytes=KindBytes(head_weights, 2 * head_weights),
        head_bytes=KindBytes(head_weights, 2 * head_weights),
        num_head_weights=head_weights,
        hidden_size=576,
    )


@each_case(
    ("num_layers", "head_weights", "num_first"), [(30, 28_000_000, 11), (30, 0, 15), (2, 10**9, 1)]
)
def test_the_first_stage_has_fewer_layers_for_its_head(
    num_layers: int, head_weights: int, num_first: int
) -> None:
    assert even_split(costs(num_layers, head_weights)) == num_first


def test_predictions_start_from_what_was_measured_whole() -> None:
    """A machine whose step takes much longer for more rows, so that groups gain."""
    measured: Measured = {
        (how, num_requests): [rate, 2 * rate, rate]
        for how in (WHOLE, ONE_AT_A_TIME, IN_FLIGHT)
        for num_requests, rate in ((FEW, 50.0), (MANY, 80.0))
    }
    rows = {
        (row.how, row.num_requests): row for row in rows_of(costs(), even_split(costs()), measured)
    }
    assert rows[WHOLE, FEW].predicted_tokens_per_s == pytest.approx(50, rel=0.1)
    assert rows[WHOLE, MANY].predicted_tokens_per_s == pytest.approx(80, rel=0.1)
    assert all(row.tokens_per_s in (50, 80) for row in rows.values())
    lone = rows[ONE_AT_A_TIME, FEW].predicted_tokens_per_s
    assert lone < rows[WHOLE, FEW].predicted_tokens_per_s
    assert rows[IN_FLIGHT, FEW].predicted_tokens_per_s == pytest.approx(lone)
    gain = (
        rows[IN_FLIGHT, MANY].predicted_tokens_per_s
        / rows[ONE_AT_A_TIME, MANY].predicted_tokens_per_s
    )
    assert 1.6 < gain < 2


def test_a_link_costs_what_its_steps_take_longer() -> None:
    rows = [
        Row(ONE_AT_A_TIME, FEW, 0.0, 100.0),
        Row(LINKED[ONE_AT_A_TIME], FEW, 0.0, 1000 / 12.0),
        Row(ONE_AT_A_TIME, MANY, 0.0, 1.0),
        Row(LINKED[ONE_AT_A_TIME], MANY, 0.0, 2.0),
    ]
    assert link_ms(rows) == pytest.approx(1.0)
