"""What a model gets on a CUDA device beyond torch's operators, and in words why not, where it does
not. Everything is tried on the device before it is used: what cannot run there leaves the model as
it was.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from inference.models.batch import Batch
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.layout import cache_layout
from inference.models.cache.paged_kv import LayerKV, new_layer
from inference.models.config import MixerKind, ModelConfig
from inference.models.cuda.capture import CudaCapture
from inference.models.decoder import DecoderModel
from inference.models.graphed import GraphedDecoder
from inference.models.layers.attention import Attention, TorchAttention
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.pointwise import Pointwise, TorchPointwise
from inference.models.layers.rotation import AttentionWeights, RotationFactory, torch_rotation
from inference.models.step_batch import batch_on
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
"""Of values around 1 in bfloat16; a kernel that is wrong is wrong by more."""


class WrongResultError(Exception):
    """A kernel ran and did not compute what torch computes."""


class NotBuiltError(Exception):
    """No kernel computes what this model's layers do. The message says what."""


def accelerate(model: DecoderModel) -> tuple[DecoderModel | GraphedDecoder, str]:
    """The model with Triton's kernels and captured steps, where those run and are right; and in
    words what it has. Steps are captured with Triton's attention alone: torch's would read every
    row's context to its limit."""
    try:
        model.operators.attention |= {
            kind: working_attention(model, kind) for kind in model.operators.attention
        }
    # Whatever a compiler, a driver or an old card raises: torch's operators need none of them.
    except Exception as error:
        logger.warning("no Triton attention on %s", model.device, exc_info=True)
        return model, f"torch operators (no Triton attention: {_reason(error)})"
    working, failures = ["attention"], []
    for name, install in (("rotation", _install_rotation), ("pointwise", _install_pointwise)):
        try:
            install(model)
        except Exception as error:
            logger.warning("no Triton %s on %s", name, model.device, exc_info=True)
            failures.append(f" (no Triton {name}: {_reason(error)})")
        else:
            working.append(name)
    words = f"torch operators, Triton {', '.join(working)}{''.join(failures)}"
    if cache_layout(model.config).has_states:
        return model, f"{words}; steps with recurrent states are not captured"
    if model.config.vision is not None:
        # What a row is rotated by would have to be fed to them beside its position.
        return model, f"{words}; steps of a model that is given pictures are not captured"
    if model.config.has_predictor:
        # A captured step keeps its logits, and no hidden rows.
        return model, f"{words}; steps that a predictor follows are not captured"
    return GraphedDecoder(model, CudaCapture(model.device)), words


def _install_rotation(model: DecoderModel) -> None:
    model.operators.rotation = working_rotation(model)


def _install_pointwise(model: DecoderModel) -> None:
    model.operators.pointwise = working_pointwise(model)


def _reason(error: Exception) -> str:
    """What a load report says of a kernel that is not used. A compiler's message is in the log."""
    known = isinstance(error, NotBuiltError | WrongResultError)
    return str(error) if known else type(error).__name__


def rotation_reason(config: ModelConfig) -> str | None:
    """What of this model's rotation no kernel computes; ``None`` where one does."""
    is_partial = config.rotary_dim not in (None, config.head_dim)
    if is_partial or config.is_rope_interleaved or "unrotated" in config.mixer_kinds:
        return "only whole heads are rotated, by halves"
    if config.vision is not None:
        return "rotation by a picture's rows and columns is not built"
    return "norms over all heads are not built" if config.is_qk_norm_wide else None


def working_attention(model: DecoderModel, kind: MixerKind) -> TritonAttention:
    """With the first of ``TUNINGS`` that fits the card. Raises what the last try raised."""
    from inference.models.cuda.attention import TUNINGS, TritonAttention

    config, num_processors = model.config, processor_count(model.device)
    window, soft_cap = config.window_of(kind), config.attention_soft_cap
    for tuning in TUNINGS:
        attention = TritonAttention(window, num_processors, tuning, soft_cap)
        try:
            try_attention(model, attention, window)
        except Exception:
            if tuning == TUNINGS[-1]:
                raise
        else:
            return attention
    raise AssertionError("TUNINGS is empty")


def processor_count(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def try_attention(model: DecoderModel, attention: Attention, window: int | None) -> None:
    """One sequence of the model's own shape, as prompt and as a decode row. Raises
    ``WrongResultError``, and whatever launching raises."""
    config, device = model.config, model.device
    torch_attention = TorchAttention(window, model.dtype, config.attention_soft_cap)
    heads, dim = config.num_kv_heads, config.head_dim
    layer = new_layer(4 * TRIAL_BLOCK_TOKENS, heads, dim, model.kv_format, device)
    generator = torch.Generator().manual_seed(0)
    shape = TRIAL_TOKENS, config.num_heads + 2 * heads, dim
    rows = torch.randn(shape, generator=generator).to(device, model.dtype)
    queries, keys, values = torch.split(rows, [config.num_heads, heads, heads], dim=1)
    positions = torch.arange(TRIAL_TOKENS, device=device)
    layer.write(positions, keys, values)
    sinks = None
    if config.has_sinks:
        sinks = torch.randn(config.num_heads, generator=generator).to(device, model.dtype)
    wanted = _attend_both(torch_attention, queries, keys, values, layer, sinks)
    found = _attend_both(attention, queries, keys, values, layer, sinks)
    error = float((found.float() - wanted.float()).abs().max())
    if not error <= LARGEST_ERROR:
        raise WrongResultError(f"off by {error:.3g}")


def working_rotation(model: DecoderModel) -> RotationFactory:
    """Raises ``WrongResultError``, and whatever launching raises."""
    from inference.models.cuda.rotation import triton_rotation

    if reason := rotation_reason(model.config):
        raise NotBuiltError(reason)
    try_rotation(model, triton_rotation)
    return triton_rotation


def try_rotation(model: DecoderModel, rotation: RotationFactory) -> None:
    """A step of the first layer's shape. Raises ``WrongResultError``, and whatever launching
    raises."""
    config, device = model.config, model.device
    num_heads = config.num_heads + 2 * config.num_kv_heads
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(TRIAL_ROWS, num_heads * config.head_dim, generator=generator)
    rows = torch.arange(TRIAL_ROWS, device=device)
    batch = Batch(rows, rows, rows, rows.unsqueeze(1))
    rope, weights = next(iter(model.operators.ropes.values())), _trial_weights(model)
    found = []
    for factory in (torch_rotation, rotation):
        shape = config.num_kv_heads, config.head_dim
        layer_kv = new_layer(TRIAL_ROWS, *shape, model.kv_format, device)
        rotate = factory(config, rope, batch)
        queries = rotate(weights, qkv.to(device, model.dtype), layer_kv).queries
        stored = layer_kv.gather(rows, 1, torch.float32)
        found.append(torch.cat([queries.float().flatten(), stored.flatten()]))
    largest = float(found[0].abs().max())
    # Where a value lies between two codes either may be stored.
    allowed = max(LARGEST_ERROR, COARSEST_STEP[model.kv_format]) * largest
    error = float((found[1] - found[0]).abs().max())
    if not error <= allowed:
        raise WrongResultError(f"off by {error:.3g}")


def _trial_weights(model: DecoderModel) -> AttentionWeights:
    """Those of the first layer that has attention."""
    mixers = (layer.mixer for layer in model.layers)
    return next(mixer for mixer in mixers if isinstance(mixer, AttentionMixer))


def working_pointwise(model: DecoderModel) -> Pointwise:
    """Raises ``WrongResultError``, and whatever launching raises."""
    from inference.models.cuda.pointwise import TritonPointwise

    pointwise = TritonPointwise()
    try_pointwise(model, pointwise)
    return pointwise


def try_pointwise(model: DecoderModel, pointwise: Pointwise) -> None:
    """On rows of the model's own widths. Raises ``WrongResultError``, and whatever launching
    raises."""
    config, generator = model.config, torch.Generator().manual_seed(2)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(model.device, model.dtype)

    hidden, added = random(2 * TRIAL_ROWS, config.hidden_size).chunk(2)
    weight, gate_up = random(config.hidden_size), random(TRIAL_ROWS, 2 * config.intermediate_size)
    wanted, found = (
        [*each.add_and_norm(hidden, added, weight, config.rms_norm_eps), each.gate(gate_up)]
        for each in (TorchPointwise(), pointwise)
    )
    for right, ours in zip(wanted, found, strict=True):
        error = float((ours.float() - right.float()).abs().max())
        if not error <= LARGEST_ERROR * float(right.float().abs().max()):
            raise WrongResultError(f"off by {error:.3g}")


def _attend_both(
    attention: Attention,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layer: LayerKV,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """(TRIAL_TOKENS + 1, features): the prompt's rows, then the last again as a decode row."""
    prompt = StepInput.of_sequence(range(TRIAL_TOKENS), TRIAL_BLOCK_TOKENS)
    last = [TRIAL_TOKENS - 1]
    row = StepInput.of_decodes(last, last, prompt.block_table, TRIAL_BLOCK_TOKENS)
    prompts, rows = (batch_on(queries.device, step) for step in (prompt, row))
    prefill = attention.for_prefill(prompts, TRIAL_BLOCK_TOKENS)
    prefilled = prefill(queries, keys, values, layer, sinks)
    decoded = attention.for_decode(rows, TRIAL_BLOCK_TOKENS)(queries[-1:], layer, sinks)
    return torch.cat([prefilled, decoded])
