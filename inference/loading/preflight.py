"""Checks whether a model fits before any memory is allocated.

Imports no torch: sizes come from file headers, free memory from the caller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inference.loading.gguf.header import GGUF_TYPES
from inference.models.cache.kv_format import KVFormat, cache_layout, kv_bytes_per_token
from inference.models.config import ModelConfig
from inference.protocol.load_errors import DoesNotFitError

SHORTEST_CONTEXT_TOKENS = 256
"""A model whose weights leave no room for such a context is of no use."""

GROUPED_4_BIT = frozenset({"Q4_0", "Q4_1", "Q4_K", "INT4", "q4"})
GROUPED_8_BIT = frozenset({"Q5_0", "Q8_0", "INT8", "q5", "q6", "q8", "MXFP4"})
MXFP4, FP8_FILES = "MXFP4", "F8_E4M3"
"""The formats in which only experts are kept."""
FP8 = "fp8"
"""Small letters: quantised while loading. torch's kernel takes q5 and q6 as 8 bits."""
BYTES_PER_4_BIT_WEIGHT = 0.5 + 4 / 32
"""Code, and two 2-byte numbers per group of 32."""
BYTES_PER_8_BIT_WEIGHT = 1 + 4 / 32
NATIVE_BYTES_PER_WEIGHT = {
    **{type.name: type.cpu_bits / 8 for type in GGUF_TYPES if type.cpu_bits is not None},
    "INT4": 0.625,
    "INT8": 1.0625,
    "q5": 0.6875,
    "q6": 0.8125,
}
"""The bytes of a weight as the native decoder packs it: ``native/cpp/formats.h``."""
CARD_BYTES_PER_WEIGHT = {
    **dict.fromkeys(("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "Q1_0"), 0.5625),
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "NVFP4"), 0.625),
    "Q4_0": 0.625,
    "Q4_1": 0.625,
    "Q5_0": 0.8125,
    "Q5_1": 0.875,
    "Q8_0": 1.0625,
    "INT4": 0.625,
    "INT8": 1.0625,
    "q4": 0.625,
    "q5": 0.8125,
    "q6": 0.8125,
    "q8": 1.0625,
    "MXFP4": 0.5625,
    "Q2_K": 0.75,
    "Q3_K": 0.625,
    "Q4_K": 0.625,
    "Q5_K": 0.875,
    "Q6_K": 0.875,
    "F8_E4M3": 1.0625,
}
"""The bytes of a weight as a card's own kernels keep experts and projections,
``inference/models/cuda/packed.py`` and ``experts.py``. Those of fp8 count scales of blocks. Places
in a table take four bits, with a scale for each 32 or 16."""
BYTES_PER_TABLE_WEIGHT = 1 + 4 / 32
"""The bytes of a weight in a quantised table on a card, whose rows are looked up: a byte for each
code."""
COPY_BYTES = 2
"""Bytes of a weight in the bfloat16 copy that prompt rows are multiplied with."""
PREFILL_TOKENS_PER_STEP = {"cpu": 512, "cuda": 4096}
"""Most prompt rows of a step, by type of device."""
LOGIT_BYTES = 4
COPIES_OF_LOGITS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStep:
    """The most rows that one step of the engine holds."""

    prompt_rows: int
    decode_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    weight_bytes: int
    kv_bytes: int
    """The cache that the operator asked for, else that of the shortest context worth serving."""
    copy_bytes: int
    """A second copy of quantised weights, which makes prompts faster."""
    step_bytes: int = 0
    """Activations of the largest step."""
    image_bytes: int = 0
    """Most bytes of cached image rows."""
    correction_bytes: int = 0
    """Bytes that earlier loads took beyond an estimate like this one; below 0: they took less."""

    @property
    def load_bytes(self) -> int:
        """All but KV and copies."""
        return max(0, self.weight_bytes + self.step_bytes + self.correction_bytes)

    @property
    def required_bytes(self) -> int:
        return self.load_bytes + self.kv_bytes + self.image_bytes


def memory_need(
    config: ModelConfig,
    tensors: Iterable[tuple[str, int]],
    dense_bytes_per_weight: int,
    *,
    kv_format: KVFormat,
    largest_step: LargestStep | None = None,
    correction_bytes: int = 0,
    is_native: bool = False,
    kv_memory_bytes: int | None = None,
    packed_experts: Iterable[tuple[str, int]] = (),
    tables: Iterable[tuple[str, int]] = (),
    has_packed_kernels: bool = False,
) -> MemoryNeed:
    """``tensors``: format and number of elements of each. ``is_native``: the native decoder will
    pack them, every quantised format. ``packed_experts``: like ``tensors``, in formats that
    a card keeps experts in. ``tables``: quantised tables of tokens on a card.
    ``has_packed_kernels``: the card keeps projections packed, those of 5 and 6 bits too."""
    weight_bytes = sum(CARD_BYTES_PER_WEIGHT[format] * number for format, number in packed_experts)
    weight_bytes += sum(BYTES_PER_TABLE_WEIGHT * number for _, number in tables)
    num_quantized = 0
    for format, num_elements in tensors:
        own_bytes = NATIVE_BYTES_PER_WEIGHT.get(format) if is_native else None
        if has_packed_kernels:
            own_bytes = _card_bytes_per_weight(format)
        weight_bytes += num_elements * (
            own_bytes or _bytes_per_weight(format, dense_bytes_per_weight)
        )
        num_quantized += num_elements if format in GROUPED_4_BIT | GROUPED_8_BIT else 0
    step = largest_step or LargestStep(prompt_rows=0, decode_rows=0)
    return MemoryNeed(
        weight_bytes=int(weight_bytes),
        kv_bytes=kv_memory_bytes or _shortest_context_bytes(config, kv_format),
        copy_bytes=num_quantized * COPY_BYTES,
        step_bytes=_step_bytes(config, step, dense_bytes_per_weight),
        image_bytes=config.kept_rows_bytes,
        correction_bytes=correction_bytes,
    )


def _shortest_context_bytes(config: ModelConfig, kv_format: KVFormat) -> int:
    """The cache of one such sequence. Its state, where layers have one, is read in one slot and
    written in another, beside the empty one."""
    state_bytes = 3 * cache_layout(config).state_bytes_per_slot
    return kv_bytes_per_token(config, kv_format) * SHORTEST_CONTEXT_TOKENS + state_bytes


def _step_bytes(config: ModelConfig, step: LargestStep, bytes_per_number: int) -> int:
    """The numbers of each row that one layer holds at once, and twice the logits of rows that get a
    token: adjusting them takes a copy. The vision tower runs first, on one image at a time."""
    per_row = 3 * config.hidden_size + _mixer_numbers(config) + _mlp_numbers(config)
    rows = step.prompt_rows + step.decode_rows
    logit_rows = max(1, step.decode_rows) if rows else 0
    logits = COPIES_OF_LOGITS * logit_rows * config.vocab_size * LOGIT_BYTES
    tower = 0 if config.vision is None or not rows else config.vision.step_bytes(bytes_per_number)
    return rows * per_row * bytes_per_number + logits + tower


def _mixer_numbers(config: ModelConfig) -> int:
    """Numbers per row that the widest of the layers' mixers projects to."""
    heads = config.num_heads + 2 * config.num_kv_heads
    conv = 0 if config.short_conv is None else 3 * config.short_conv.channels
    mamba = 0 if config.mamba is None else 2 * config.mamba.projected_features
    return max(heads * config.head_dim, conv, mamba)


def _mlp_numbers(config: ModelConfig) -> int:
    """Numbers per row that the MLP holds at once: gate and up projections of all experts that the
    row is routed to; and for experts the row itself, sorted by expert, and their outputs."""
    dense = 2 * config.intermediate_size if "dense" in config.mlp_kinds else 0
    if config.experts is None:
        return dense
    of_expert = 2 * config.experts.intermediate_size + 2 * config.hidden_size
    shared = 2 * (config.experts.shared_intermediate_size or 0)
    return max(dense, config.experts.experts_per_token * of_expert + shared)


def _bytes_per_weight(format: str, dense_bytes: int) -> float:
    if format in GROUPED_4_BIT:
        return BYTES_PER_4_BIT_WEIGHT
    if format == FP8:
        return 1
    return BYTES_PER_8_BIT_WEIGHT if format in GROUPED_8_BIT else dense_bytes


def _card_bytes_per_weight(format: str) -> float | None:
    """The larger of torch's kernel and the card's own, where both exist: the faster one is chosen
    once both are built. ``None``: neither keeps it packed."""
    own = CARD_BYTES_PER_WEIGHT.get(format)
    if own is None or format in (MXFP4, FP8_FILES):
        return None
    has_torch_kernel = format in GROUPED_4_BIT | {"Q8_0", "INT8", "q8"}
    return max(own, _bytes_per_weight(format, 0)) if has_torch_kernel else own


def check_fits(need: MemoryNeed, free_bytes: int, device: str, *, num_sharing: int = 1) -> None:
    """``need`` and ``free_bytes`` are one rank's, of ``num_sharing`` on the device. Raises
    ``DoesNotFitError`` with both numbers, and what the device must have for all of them."""
    if need.required_bytes > free_bytes:
        raise DoesNotFitError(
            f"the model needs {_gigabytes(need.required_bytes)} on {device} (weights, a step's "
            f"numbers and {_gigabytes(need.kv_bytes)} for keys and values), and "
            f"{_gigabytes(free_bytes)} are free; unload another model, or load a smaller quant",
            need.required_bytes * num_sharing,
        )


def check_kv_memory(kv_memory_bytes: int | None, free_bytes: int, device: str) -> None:
    """Checks the memory asked for, before anything is fetched. Raises ``DoesNotFitError`` with both
    numbers."""
    if kv_memory_bytes is not None and kv_memory_bytes > free_bytes:
        raise DoesNotFitError(
            f"{_gigabytes(kv_memory_bytes)} of memory for keys and values are asked for, and "
            f"{_gigabytes(free_bytes)} are free on {device}; ask for less, or leave it empty"
        )


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
