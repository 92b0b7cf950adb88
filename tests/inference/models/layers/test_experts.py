"""The mixture of experts against transformers' own blocks, in both ways to multiply."""

from __future__ import annotations

import torch
from transformers import OlmoeConfig, Qwen2MoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

from inference.loading.weights.named_files import by_expert
from inference.loading.weights.opened_weights import OpenedWeights
from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.experts import (
    SparseMlp,
    load_grouped,
    load_mixture,
    route,
)
from tests.inference.models.ranks import MemoryFiles, weights_of

HIDDEN, INNER, SHARED_INNER, NUM_EXPERTS, PER_TOKEN, NUM_ROWS = 32, 16, 48, 6, 3, 40
CPU = torch.device("cpu")
PREFIX = "model.layers.0.mlp"

SIZES = {"num_experts": NUM_EXPERTS, "experts_per_token": PER_TOKEN, "intermediate_size": INNER}
SHARED = ExpertsConfig(**SIZES, shared_intermediate_size=SHARED_INNER)
UNSHARED = ExpertsConfig(**SIZES)


def random_block(config: ExpertsConfig) -> torch.nn.Module:
    """Transformers' own; families' other blocks are held to it by their parity."""
    torch.manual_seed(3)
    sizes = {"hidden_size": HIDDEN, "num_experts": NUM_EXPERTS, "num_experts_per_tok": PER_TOKEN}
    if config is SHARED:
        sizes |= {"moe_intermediate_size": INNER, "shared_expert_intermediate_size": SHARED_INNER}
        block: torch.nn.Module = Qwen2MoeSparseMoeBlock(Qwen2MoeConfig(**sizes)).eval()
    else:
        block = OlmoeSparseMoeBlock(OlmoeConfig(**sizes, intermediate_size=INNER)).eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return block


def opened(block: torch.nn.Module, stacked: bool) -> OpenedWeights:
    """Opens the experts as files hold them: in stacks, or each by its own name."""
    state = {f"{PREFIX}.{key}": value for key, value in block.state_dict().items()}
    if not stacked:
        gate_up = state.pop(f"{PREFIX}.experts.gate_up_proj")
        down = state.pop(f"{PREFIX}.experts.down_proj")
        for expert in range(NUM_EXPERTS):
            gate, up = gate_up[expert].chunk(2)
            for part, weight in (("gate", gate), ("up", up), ("down", down[expert])):
                state[f"{PREFIX}.experts.{expert}.{part}_proj.weight"] = weight
    return weights_of(by_expert(MemoryFiles(state)))


@torch.inference_mode()
def test_rows_in_both_phases_and_grouped_are_as_the_reference_has_them() -> None:
    x = torch.randn(NUM_ROWS, HIDDEN)
    for config, stacked in ((SHARED, False), (SHARED, True), (UNSHARED, True)):
        block = random_block(config)
        expected, weights = block(x.unsqueeze(0)).squeeze(0), opened(block, stacked)
        mlp = load_mixture(config, weights, PREFIX)
        for phase in (mlp.prefill, mlp.decode):
            torch.testing.assert_close(phase(x), expected, rtol=1e-4, atol=1e-5)
            assert phase(x[:0]).shape == (0, HIDDEN), "no expert is hit by no rows"
    experts = load_grouped(config, weights, PREFIX)
    grouped = SparseMlp(config, weights.tensor(f"{PREFIX}.gate.weight"), experts)
    torch.testing.assert_close(grouped.decode(x), expected, rtol=1e-4, atol=1e-5)
    # A decoded row does not depend on its neighbours.
    alone = torch.cat([mlp.decode(row) for row in x.split(1)])
    routes = route(config, torch.cat([row @ mlp.router.T for row in x.split(1)]))
    assert torch.equal(mlp.experts.decode(x, routes), alone)
    expected = mlp.prefill(x)
    x[7, 3] = float("nan")
    others = [row for row in range(NUM_ROWS) if row != 7]
    for actual in (mlp.prefill(x), mlp.decode(x)):
        assert actual[7].isnan().all()
        torch.testing.assert_close(actual[others], expected[others], rtol=1e-4, atol=1e-5)
