"""The mixture of experts in both ways to multiply. Families' parity holds one to transformers."""

from __future__ import annotations

import torch

from inference.models.layers.experts import load_grouped, load_mixture, route
from tests.inference.models.ranks import MemoryFiles, random_tensors, weights_of
from tests.inference.models.tiny_configs import config_of

PREFIX, NUM_ROWS = "model.layers.0.mlp", 40
NEAR = {"rtol": 1e-4, "atol": 1e-5}


@torch.inference_mode()
def test_rows_in_both_phases_and_grouped() -> None:
    config = config_of("qwen2_moe")
    assert config.experts is not None and config.experts.shared_intermediate_size
    weights = weights_of(MemoryFiles(random_tensors(config)))
    mlp, grouped = (load(config.experts, weights, PREFIX) for load in (load_mixture, load_grouped))
    x = torch.randn(NUM_ROWS, config.hidden_size)
    expected, routes = mlp.prefill(x), mlp.routes(x)
    assert expected.std() > 0.01
    torch.testing.assert_close(mlp.decode(x), expected, **NEAR)
    looped = mlp.experts.prefill(x, routes)
    torch.testing.assert_close(grouped.decode(x, routes), looped, **NEAR)
    for phase in (mlp.prefill, mlp.decode):
        assert phase(x[:0]).shape == (0, config.hidden_size), "no expert is hit by no rows"
    # A decoded row does not depend on its neighbours.
    alone = torch.cat([mlp.experts.decode(row, mlp.routes(row)) for row in x.split(1)])
    logits = torch.cat([row @ mlp.router.T for row in x.split(1)])
    assert torch.equal(mlp.experts.decode(x, route(config.experts, logits)), alone)
    x[7, 3] = float("nan")
    others = [row for row in range(NUM_ROWS) if row != 7]
    for actual in (mlp.prefill(x), mlp.decode(x)):
        assert actual[7].isnan().all()
        torch.testing.assert_close(actual[others], expected[others], **NEAR)
