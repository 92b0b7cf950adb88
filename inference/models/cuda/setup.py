"""Tries Triton's kernels and captured steps on a CUDA device, and gives a model those that run and
are right; torch's operators stay for the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from inference.models.config import MixerKind
from inference.models.cuda.trials import CudaCapture, processor_count, random_on
from inference.models.decoder import DecoderLayers, DecoderModel
from inference.models.device_step import DeviceStep
from inference.models.graphed import GraphedDecoder
from inference.models.kv_format import KVFormat
from inference.models.layers.attention import Attention, TorchAttention
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.norms import Pointwise, TorchPointwise
from inference.models.layers.rope import RotationFactory, torch_rotation
from inference.models.layers.state_rows import ChunkStates, torch_chunk_states
from inference.models.paged_kv import LayerKV, new_layer
from inference.models.step_input import StepInput

if TYPE_CHECKING:
    from inference.models.cuda.attention import TritonAttention

logger = logging.getLogger(__name__)

COARSEST_STEP: dict[KVFormat, float] = {
    "fp32": 0.0,
    "bf16": 2**-7,
    "fp16": 2**-10,
    "int8": 1 / 127,
    "fp8": 2**-3,
}
"""Between neighbouring codes, relative to the largest value."""
TRIAL_ROWS = 3
TRIAL_TOKENS = 70
TRIAL_BLOCK_TOKENS = 32
LARGEST_ERROR = 0.03
"""For values around 1 in bfloat16; a wrong kernel is off by more."""

LARGEST_EXACT_ERROR = 1e-4
"""For float32, relative to the largest value."""


class UnfitKernelError(Exception):
    """The message says why in words."""


def accelerate(model: DecoderModel) -> tuple[DecoderModel | GraphedDecoder, str]:
    """Steps are captured with Triton's attention alone: torch's would read every row's context to
    its limit. The string says in words what the model has."""
    has_attention, words = install_kernels(model)
    if not has_attention:
        return model, words
    return GraphedDecoder(model, CudaCapture(model.device)), words


def install_kernels(model: DecoderLayers) -> tuple[bool, str]:
    """Returns whether it has Triton's attention, and in words what it has."""
    if model.config.latent is not None:
        return False, "torch operators (no Triton attention: none is built for latents)"
    try:
        model.operators.attention |= {
            kind: working_attention(model, kind) for kind in model.operators.attention
        }
    # Whatever a compiler, a driver or an old card raises: torch's operators need none of them.
    except Exception as error:
        logger.warning("no Triton attention on %s", model.device, exc_info=True)
        return False, f"torch operators (no Triton attention: {_reason(error)})"
    from inference.models.cuda import operators

    kernels: dict[str, tuple[Callable[..., None], object]] = {
        "rotation": (try_rotation, operators.triton_rotation),
        "pointwise": (try_pointwise, operators.TritonPointwise()),
    }
    if model.config.delta is not None:
        kernels["chunk_states"] = try_chunk_states, operators.triton_chunk_states
    working, failures = ["attention"], []
    for name, (try_out, kernel) in kernels.items():
        words = name.replace("_", " ")
        try:
            try_out(model, kernel)
        except Exception as error:
            logger.warning("no Triton %s on %s", words, model.device, exc_info=True)
            failures.append(f" (no Triton {words}: {_reason(error)})")
        else:
            setattr(model.operators, name, kernel)
            working.append(words)
    return True, f"torch operators, Triton {', '.join(working)}{''.join(failures)}"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UnfitKernelError) else type(error).__name__


def working_attention(model: DecoderLayers, kind: MixerKind) -> TritonAttention:
    """The first of ``TUNINGS`` that fits the card. Raises what the last try raised."""
    from inference.models.cuda.attention import TUNINGS, TritonAttention

    config, num_processors = model.config, processor_count(model.device)
    window, soft_cap = config.window_of(kind), config.attention_soft_cap
    sees_ahead = config.vision is not None and config.vision.is_bidirectional
    for tuning in TUNINGS:
        attention = TritonAttention(
            *(window, num_processors, tuning, soft_cap),
            sees_ahead=sees_ahead,
            is_chunked=kind == "chunked",
        )
        try:
            try_attention(model, attention, kind)
        except Exception:
            if tuning == TUNINGS[-1]:
                raise
        else:
            return attention
    raise AssertionError("TUNINGS is empty")


def try_attention(model: DecoderLayers, attention: Attention, kind: MixerKind) -> None:
    config, device = model.config, model.device
    torch_attention = TorchAttention(
        *(config.window_of(kind), model.dtype, config.attention_soft_cap),
        is_chunked=kind == "chunked",
    )
    heads, dim = config.num_kv_heads, config.head_dim
    layer = new_layer(4 * TRIAL_BLOCK_TOKENS, heads, dim, model.kv_format, device)
    random = random_on(device, model.dtype, seed=0)
    rows = random(TRIAL_TOKENS, config.num_heads + 2 * heads, dim)
    queries, keys, values = torch.split(rows, [config.num_heads, heads, heads], dim=1)
    positions = torch.arange(TRIAL_TOKENS, device=device)
    layer.write(positions, keys, values)
    sinks = random(config.num_heads) if config.has_sinks else None
    wanted = _attend_both(torch_attention, queries, keys, values, layer, sinks)
    found = _attend_both(attention, queries, keys, values, layer, sinks)
    _check_error(found, wanted, LARGEST_ERROR)


def _check_rotates(model: DecoderLayers) -> None:
    """Whether the kernel computes this model's rotation."""
    config = model.config
    is_partial = config.rotary_dim not in (None, config.head_dim)
    if is_partial or config.is_rope_interleaved or "unrotated" in config.mixer_kinds:
        raise UnfitKernelError("only whole heads are rotated, by halves")
    if config.is_qk_norm_wide:
        raise UnfitKernelError("norms over all heads are not built")
    if not model.operators.ropes:
        raise UnfitKernelError("none of these layers rotates")


def try_rotation(model: DecoderLayers, rotation: RotationFactory) -> None:
    _check_rotates(model)
    config, device = model.config, model.device
    num_heads = config.num_heads + 2 * config.num_kv_heads
    qkv = random_on(device, model.dtype, seed=1)(TRIAL_ROWS, num_heads * config.head_dim)
    numbers = range(TRIAL_ROWS)
    table = np.arange(TRIAL_ROWS, dtype=np.int32)[None]
    step = DeviceStep.of(
        StepInput.of_queries(numbers, [0], [TRIAL_ROWS], table, 1, num_decodes=0), device
    )
    rope, weights = next(iter(model.operators.ropes.values())), _trial_weights(model)
    found = []
    for factory in (torch_rotation, rotation):
        shape = config.num_kv_heads, config.head_dim
        layer_kv = new_layer(TRIAL_ROWS, *shape, model.kv_format, device)
        rotate = factory(config, rope, step)
        queries = rotate(weights, qkv, layer_kv).queries
        stored = layer_kv.gather(step.slots, 1, torch.float32)
        found.append(torch.cat([queries.float().flatten(), stored.flatten()]))
    # Where a value lies between two codes either may be stored.
    allowed = max(LARGEST_ERROR, COARSEST_STEP[model.kv_format]) * float(found[0].abs().max())
    _check_error(found[1], found[0], allowed)


def _trial_weights(model: DecoderLayers) -> AttentionMixer:
    mixers = (layer.mixer for layer in model.layers)
    return next(mixer for mixer in mixers if isinstance(mixer, AttentionMixer))


def try_pointwise(model: DecoderLayers, pointwise: Pointwise) -> None:
    config, random = model.config, random_on(model.device, model.dtype, seed=2)
    hidden, added = random(2 * TRIAL_ROWS, config.hidden_size).chunk(2)
    weight, gate_up = random(config.hidden_size), random(TRIAL_ROWS, 2 * config.intermediate_size)
    wanted, found = (
        [*each.add_and_norm(hidden, added, weight, config.rms_norm_eps), each.gate(gate_up)]
        for each in (TorchPointwise(), pointwise)
    )
    for right, ours in zip(wanted, found, strict=True):
        _check_error(ours, right, LARGEST_ERROR * float(right.float().abs().max()))


def try_chunk_states(model: DecoderLayers, chunk_states: ChunkStates) -> None:
    shape = model.config.delta
    assert shape is not None, "only models with such layers are given the kernel"
    heads, keys, values = shape.num_value_heads, shape.key_head_dim, shape.value_head_dim
    random = random_on(model.device, torch.float32, seed=3)
    given = random(3, heads, keys, keys) / keys, random(3, heads, keys, values)
    state = random(heads, keys, values)
    wanted, found = (each(*given, state) for each in (torch_chunk_states, chunk_states))
    for right, ours in zip(wanted, found, strict=True):
        _check_error(ours, right, LARGEST_EXACT_ERROR * float(right.abs().max()))


def _check_error(found: torch.Tensor, wanted: torch.Tensor, allowed: float) -> None:
    error = float((found.float() - wanted.float()).abs().max())
    if not error <= allowed:
        raise UnfitKernelError(f"off by {error:.3g}")


def _attend_both(
    attention: Attention,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layer: LayerKV,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """(TRIAL_TOKENS + 1, features): of a step in which the prompt's last row decodes as well."""
    num_blocks = -(-TRIAL_TOKENS // TRIAL_BLOCK_TOKENS)
    table = np.tile(np.arange(num_blocks, dtype=np.int32), (2, 1))
    step = StepInput.of_queries(
        [0] * (TRIAL_TOKENS + 1),
        [TRIAL_TOKENS - 1, 0],
        [1, TRIAL_TOKENS],
        table,
        TRIAL_BLOCK_TOKENS,
        num_decodes=1,
    )
    attend = attention.of_step(DeviceStep.of(step, queries.device))
    queries, keys, values = (torch.cat((rows[-1:], rows)) for rows in (queries, keys, values))
    return attend(queries, keys, values, layer, sinks)
