"""Checks whether a model fits before any memory is allocated. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from inference.loading.formats import FP8_FILES, MXFP4, Format, format_of
from inference.models.config import ModelConfig
from inference.models.families.roles import Role
from inference.models.kv_format import KVFormat, cache_layout, kv_bytes_per_token
from inference.protocol.load_errors import DoesNotFitError

SHORTEST_CONTEXT_TOKENS = 256
"""A model whose weights leave no room for such a context is of no use."""

TABLE_BITS = 9
"""On a card, with rows looked up: a byte for each code, and two 2-byte numbers for each 32."""
WIDENED = frozenset({"Q5_0", "q5", "q6"})
"""Formats that torch's kernel takes as 8 bits: a card's own is always the better one."""
COPY_BYTES = 2
"""Bytes of a weight in the bfloat16 copy that prompt rows are multiplied with."""
PREFILL_TOKENS_PER_STEP = {"cpu": 512, "cuda": 4096}
LOGIT_BYTES = 4
COPIES_OF_LOGITS = 2


class Weight(NamedTuple):
    """``format``: a name of ``loading.formats``, or anything for a dense one."""

    role: Role | None
    format: str
    num_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    dense_bytes: int
    is_card: bool = False
    is_native: bool = False
    """The native decoder packs every format."""
    packs_experts: bool = False
    packs_projections: bool = False
    """The card keeps projections packed, those of 5 and 6 bits too."""

    def bytes_of(self, weights: Iterable[Weight], *, is_tied: bool = False) -> tuple[int, int]:
        """Returns also the bytes of second copies of those that torch's kernels multiply.
        ``is_tied``: the output head is the table."""
        bits, num_copied = 0.0, 0
        for weight in weights:
            format = format_of(weight.format)
            if self._has_codes(weight, format):
                bits += TABLE_BITS * weight.num_elements
                if not is_tied:
                    continue
            own = self._bits_of(weight, format)
            bits += (own or 8 * self.dense_bytes) * weight.num_elements
            has_copy = own and format.torch and format.name != "fp8"
            if has_copy and not (self.is_card and weight.role == "experts"):
                num_copied += weight.num_elements
        return int(bits / 8), num_copied * COPY_BYTES

    def _has_codes(self, weight: Weight, format: Format) -> bool:
        """On a card, tables stay in codes. A head that is tied to one is packed beside it."""
        is_table = self.is_card and weight.role == "embedding"
        return is_table and format.card is not None and format.name != FP8_FILES

    def _bits_of(self, weight: Weight, format: Format) -> float | None:
        """``None``: dense, as towers are, and experts on a card that does not keep their format."""
        if weight.role == "tower":
            return None
        if not self.is_card:
            return (format.native if self.is_native else None) or format.torch
        if weight.role == "experts":
            return format.card if self.packs_experts else None
        is_of_experts = format.name in (MXFP4, FP8_FILES)
        if not self.packs_projections or format.card is None or is_of_experts:
            return format.torch
        # The faster one is chosen once both are built.
        return max(format.card, 0 if format.name in WIDENED else format.torch or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    weight_bytes: int
    kv_bytes: int
    """The cache that the operator asked for, else that of the shortest context worth serving."""
    copy_bytes: int
    step_bytes: int = 0
    image_bytes: int = 0
    correction_bytes: int = 0
    """Bytes that earlier loads took beyond an estimate like this; negative: they took less."""

    @property
    def load_bytes(self) -> int:
        return max(0, self.weight_bytes + self.step_bytes + self.correction_bytes)

    @property
    def required_bytes(self) -> int:
        return self.load_bytes + self.kv_bytes + self.image_bytes


def shortest_context_bytes(config: ModelConfig, kv_format: KVFormat) -> int:
    """A sequence's state is read in one slot and written in another, beside the empty one."""
    state_bytes = 3 * cache_layout(config).state_bytes_per_slot
    return kv_bytes_per_token(config, kv_format) * SHORTEST_CONTEXT_TOKENS + state_bytes


def step_bytes(
    config: ModelConfig, bytes_per_number: int, *, prompt_rows: int, decode_rows: int
) -> int:
    """The numbers of each row that one layer holds at once, and twice the logits of rows that get a
    token: adjusting them takes a copy. The vision tower runs first, on one image at a time."""
    per_row = 3 * config.hidden_size + _mixer_numbers(config) + _mlp_numbers(config)
    logits = COPIES_OF_LOGITS * max(1, decode_rows) * config.vocab_size * LOGIT_BYTES
    tower = 0 if config.vision is None else config.vision.step_bytes(bytes_per_number)
    return (prompt_rows + decode_rows) * per_row * bytes_per_number + logits + tower


def _mixer_numbers(config: ModelConfig) -> int:
    heads = config.num_heads + 2 * config.num_kv_heads
    conv = 0 if config.short_conv is None else 3 * config.short_conv.channels
    mamba = 0 if config.mamba is None else 2 * config.mamba.projected_features
    return max(heads * config.head_dim, conv, mamba)


def _mlp_numbers(config: ModelConfig) -> int:
    """Gate and up projections of all experts of the row; and for experts the row itself, sorted by
    expert, and their outputs."""
    dense = 2 * config.intermediate_size if "dense" in config.mlp_kinds else 0
    if config.experts is None:
        return dense
    of_expert = 2 * config.experts.intermediate_size + 2 * config.hidden_size
    shared = 2 * (config.experts.shared_intermediate_size or 0)
    return max(dense, config.experts.experts_per_token * of_expert + shared)


def check_fits(need: MemoryNeed, free_bytes: int, device: str, *, num_sharing: int = 1) -> None:
    """``need`` and ``free_bytes`` are one rank's. Raises ``DoesNotFitError``."""
    if need.required_bytes > free_bytes:
        raise DoesNotFitError(
            f"the model needs {_gigabytes(need.required_bytes)} on {device} (weights, a step's "
            f"numbers and {_gigabytes(need.kv_bytes)} for keys and values), and "
            f"{_gigabytes(free_bytes)} are free; unload another model, or load a smaller quant",
            need.required_bytes * num_sharing,
        )


def check_kv_memory(kv_memory_bytes: int | None, free_bytes: int, device: str) -> None:
    """Raises ``DoesNotFitError``."""
    if kv_memory_bytes is not None and kv_memory_bytes > free_bytes:
        raise DoesNotFitError(
            f"{_gigabytes(kv_memory_bytes)} of memory for keys and values are asked for, and "
            f"{_gigabytes(free_bytes)} are free on {device}; ask for less, or leave it empty"
        )


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
