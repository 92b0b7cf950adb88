"""Rows of one step meet their adapters one by one or together, to the same sums."""

from __future__ import annotations

import numpy as np
import torch

from inference.models.adapter import (
    AdapterWeights,
    LowRank,
    StepAdapters,
    TorchAdapter,
    row_groups,
    torch_adapter,
)
from inference.models.layers.linear import DenseLinear
from inference.models.step_input import StepInput
from tests.cases import each_case

CPU = torch.device("cpu")
IN_FEATURES, OUT_FEATURES, NUM_DECODES, NUM_ROWS = 8, 6, 5, 8
PROJECTION = DenseLinear(torch.zeros(OUT_FEATURES, IN_FEATURES))


def adapter(rank: int) -> TorchAdapter:
    generator = torch.Generator().manual_seed(rank)
    pair = LowRank(
        down=torch.randn(rank, IN_FEATURES, generator=generator),
        up=torch.randn(OUT_FEATURES, rank, generator=generator),
        scale=0.5,
    )
    stacked = {id(PROJECTION): [("q_proj", OUT_FEATURES)]}
    return torch_adapter(AdapterWeights({"q_proj": pair}), stacked, CPU, torch.float32)


FIRST, SECOND = adapter(2), adapter(4)


def step_with(*adapters: TorchAdapter | None) -> StepInput:
    """Five rows that decode, and a prompt of three."""
    lens = [1] * NUM_DECODES + [3]
    table = np.zeros((NUM_DECODES + 1, 1), dtype=np.int32)
    tokens = [0] * NUM_ROWS
    return StepInput.of_queries(
        tokens, [0] * len(lens), lens, table, 4, num_decodes=NUM_DECODES, adapters=adapters
    )


STEPS = {
    "scattered": (FIRST, SECOND, None, FIRST, SECOND, FIRST),
    "neighbours": (FIRST, FIRST, None, SECOND, SECOND, None),
    "nobody decodes with one": (None, None, None, None, None, SECOND),
}


@each_case("step", STEPS)
def test_together_or_one_by_one_are_the_same_sums(step: str) -> None:
    x = torch.randn(NUM_ROWS, IN_FEATURES, generator=torch.Generator().manual_seed(7))
    given = step_with(*STEPS[step])
    found = [
        StepAdapters(given, CPU, together=together).add_to(
            torch.zeros(NUM_ROWS, OUT_FEATURES), PROJECTION, x
        )
        for together in (False, True)
    ]
    assert bool(found[0].any())
    torch.testing.assert_close(found[1], found[0])
    without = [row for row, own in enumerate(STEPS[step][:NUM_DECODES]) if own is None]
    assert not bool(found[1][without].any())


def test_neighbours_need_no_list_of_rows() -> None:
    span = (FIRST, slice(5, 8))
    scattered = row_groups(step_with(*STEPS["scattered"]), together=True)
    assert scattered == [(FIRST, [0, 3]), (SECOND, [1, 4]), span]
    neighbours = row_groups(step_with(*STEPS["neighbours"]), together=True)
    assert neighbours == [(FIRST, slice(0, 2)), (SECOND, slice(3, 5))]
