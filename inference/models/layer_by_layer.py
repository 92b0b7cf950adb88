"""A decoder over one prompt with one layer in memory at a time: slow, but it fits wherever one
layer fits. Knows no files.

    embedding rows ─▶ layer 0, forgotten ─▶ layer 1, forgotten ─▶ … ─▶ head, some rows at a time
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import linear

from inference.models.config import STATE_KINDS, ModelConfig
from inference.models.decoder import embedded, finished, load_layer
from inference.models.device_step import DeviceStep
from inference.models.layers.norms import load_norm
from inference.models.layers.step import Operators
from inference.models.paged_kv import FORMAT_OF, new_layer, new_layer_state
from inference.models.step_input import NUM_LONE_STATES, StepInput
from inference.models.stored_weights import written_out
from inference.models.weight_source import WeightSource

HEAD_ROWS = 8192


@torch.inference_mode()
def prompt_logits(
    config: ModelConfig,
    weights: WeightSource,
    prompt: StepInput,
    on_layer: Callable[[int], None],
) -> torch.Tensor:
    """(num_logits, vocab_size) float32. ``prompt`` is one sequence from its start, in blocks of one
    token; ``on_layer`` receives the number of finished layers. Raises ``MissingTensorError``."""
    num_tokens = prompt.longest_context
    assert len(prompt.positions) == num_tokens and prompt.block_tokens == 1
    device, dtype = weights.device, weights.activation_dtype
    on_device = DeviceStep.of(prompt, device)
    heads = config.num_kv_heads, config.head_dim
    format, vectors = FORMAT_OF[dtype], config.kv_vectors
    kv = new_layer(num_tokens, *heads, format, device, num_vectors=vectors)
    states = config.state and new_layer_state(NUM_LONE_STATES, config.state, device)
    step = Operators(config, num_tokens, device, dtype).step(on_device)
    table = written_out(weights.stored("model.embed_tokens"))
    rows = embedded(config, table.index_select(0, on_device.token_ids.cpu()).to(device, dtype))
    for index, kind in enumerate(config.mixer_kinds):
        cache = states if kind in STATE_KINDS else kv
        rows = load_layer(config, weights, index)(rows, step, cache)
        on_layer(index + 1)
    if on_device.logit_rows is not None:
        rows = rows.select(on_device.logit_rows)
    _, normed = rows.norm(load_norm(config, weights, "model.norm"), step.pointwise)
    head = table if config.tie_embeddings else written_out(weights.stored("lm_head"))
    parts = [
        linear(normed, part.to(device, dtype)).float() for part in torch.split(head, HEAD_ROWS)
    ]
    return finished(config, torch.cat(parts, dim=-1))


def largest_layer_bytes(config: ModelConfig, bytes_per_weight: int) -> int:
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    rows = heads * config.head_dim + 3 * config.intermediate_size
    head_rows = min(HEAD_ROWS, config.vocab_size)
    return max(rows, head_rows) * config.hidden_size * bytes_per_weight
