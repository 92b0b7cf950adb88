"""How much memory keys, values and states may take, from measurements, and how long a prompt and
its answer may be together: the least of what bounds it, and why.

The context is found once and stays while its engine lives: the gateway advertises it, and the
neuron and the engine enforce it. The next load, which starts from a live average, may find another.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from inference.engine.errors import DoesNotFitError
from inference.engine.state_slots import SLOTS_PER_SEQUENCE
from inference.loading.devices import free_memory_bytes, planned_kv_format, ranks_on_one_device
from inference.loading.loader import OpenedModel
from inference.models.config import ATTENTION_KINDS, ModelConfig
from inference.models.kv_format import (
    CacheLayout,
    KVFormat,
    cache_layout,
    kv_bytes_per_block,
    kv_bytes_per_token,
)
from inference.models.splits import stage_config
from inference.protocol.load import LoadSpec, PrefillSpeed
from inference.settings.neuron import CPU_KV_SHARE

DEFAULT_CPU_KV_SHARE = 0.15
CUDA_MARGIN_BYTES = 512 * 1024**2
"""Left free on a GPU for what the profiling forward did not see: fragmentation, workspaces."""
SHORTEST_USEFUL_CONTEXT = 256
FEW_CONTEXTS = 4
"""How many full contexts a GPU keeps room for where no setting limits the KV memory."""
TOKENS_PER_SEQUENCE = 1024
"""Room for so many tokens of every sequence that may run at once, where that is more."""
ADAPTERS_SHARE = 1 / 8
"""A model that serves no adapter requests must not lose its context to them."""
POSITIONS_MARGIN = 1.25
TABLE_COPIES = 3 * 4
"""Bytes of a rotated feature: cosines, sines, and the native decoder's halves, float32."""
GROWTH_BYTES = 4
"""Bytes of each position of a model whose queries grow."""
KEPT_PER_WEIGHT_BYTE = 2
"""Bytes of cached prefixes in host memory per byte of weights: large models recompute slowly."""
SNAPSHOTS_PER_SEQUENCE = 2
"""Kept for later prompts, where there is room: the end of a prompt and that of an answer."""
LARGEST_SHARE = 0.5
"""The share of the memory that states may take: without blocks they are of no use."""
SHARE_THAT_LEAVES_ROOM = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBound:
    """``is_average``: over requests of an earlier run, else measured by this load's first steps."""

    speed: PrefillSpeed
    max_prefill_s: float | None
    is_average: bool

    def tokens(self, at_most: int) -> int:
        if self.max_prefill_s is None:
            return at_most
        return self.speed.longest_prompt(self.max_prefill_s, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBounds:
    model_tokens: int
    operator_tokens: int | None
    kv_tokens: int
    prefill: PrefillBound | None

    @property
    def tokens(self) -> int:
        return min(self.kv_tokens, self.unbound_by_kv_tokens)

    @property
    def unbound_by_kv_tokens(self) -> int:
        wanted = min(self.model_tokens, self.operator_tokens or self.model_tokens)
        return wanted if self.prefill is None else self.prefill.tokens(wanted)

    def reason(self) -> str:
        parts = [self._binding(), f"KV memory holds {self.kv_tokens:,}"]
        if self.prefill is not None:
            parts.append(_prefill_words(self.prefill, self.tokens))
        return f"{self.tokens:,} tokens: " + "; ".join(parts)

    def _binding(self) -> str:
        tokens = self.tokens
        if tokens == self.model_tokens:
            return "the model's own"
        if tokens == self.operator_tokens:
            return f"the operator's clamp on the model's {self.model_tokens:,}"
        what = "KV memory" if tokens == self.kv_tokens else "prompt speed"
        return f"bound by {what}, the model's own are {self.model_tokens:,}"


def _prefill_words(bound: PrefillBound, tokens: int) -> str:
    source = "average of earlier requests" if bound.is_average else "measured as it was loaded"
    rate = f"{bound.speed.tokens_per_s(tokens):,.0f} tokens/s, {source}"
    allowed = "" if bound.max_prefill_s is None else f" of the {bound.max_prefill_s:g} s allowed"
    return f"a prompt that long takes {bound.speed.prompt_s(tokens):.3g} s{allowed} ({rate})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    num_slots: int
    slot_bytes: int
    max_sequences: int

    @property
    def state_bytes(self) -> int:
        return self.num_slots * self.slot_bytes

    @property
    def num_snapshots(self) -> int:
        return max(0, self.num_slots - 1 - SLOTS_PER_SEQUENCE * self.max_sequences)

    def in_words(self) -> str:
        if not self.num_slots:
            return ""
        return (
            f"states of {self.max_sequences} sequences and {self.num_snapshots} snapshots take "
            f"{self.state_bytes / 1e6:,.1f} MB"
        )


def wanted_slots(max_sequences: int) -> int:
    """Includes the empty state."""
    return 1 + (SLOTS_PER_SEQUENCE + SNAPSHOTS_PER_SEQUENCE) * max_sequences


def plan_states(
    layout: CacheLayout, *, budget_bytes: int, max_sequences: int, leaves_room: bool = False
) -> StatePlan:
    """Plans fewer sequences where the budget's share is small. Raises ``DoesNotFitError``."""
    if not layout.has_states:
        return StatePlan(num_slots=0, slot_bytes=0, max_sequences=max_sequences)
    slot_bytes = layout.state_bytes_per_slot
    share_bytes = int(budget_bytes * (SHARE_THAT_LEAVES_ROOM if leaves_room else LARGEST_SHARE))
    num_slots = min(wanted_slots(max_sequences), share_bytes // slot_bytes)
    if num_slots < 1 + SLOTS_PER_SEQUENCE:
        needed_bytes = (1 + SLOTS_PER_SEQUENCE) * slot_bytes
        raise DoesNotFitError(
            f"{share_bytes / 1e6:.1f} MB are free for the states of recurrent layers, but one "
            f"sequence needs {needed_bytes / 1e6:.1f} MB"
        )
    return StatePlan(
        num_slots=num_slots,
        slot_bytes=slot_bytes,
        max_sequences=min(max_sequences, max(1, (num_slots - 1) // (SLOTS_PER_SEQUENCE + 1))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPlan:
    num_blocks: int
    block_bytes: int
    """0 where the device's layers have no keys: then the blocks are others' business."""
    kept_blocks: int
    context_tokens: int
    context_reason: str
    states: StatePlan
    adapter_bytes: int = 0
    """Kept free for adapters, which are loaded while the model serves."""

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def cache_bytes(self) -> int:
        return self.kv_bytes + self.states.state_bytes


def plan_kv(
    config: ModelConfig,
    *,
    budget_bytes: int,
    block_tokens: int,
    kv_format: KVFormat,
    max_context_tokens: int | None,
    max_sequences: int,
    prefill: PrefillBound | None = None,
    kept_bytes: int | None = None,
    leaves_room: bool = False,
    draft_block_bytes: int = 0,
    adapter_bytes: int = 0,
    num_positions: int | None = None,
) -> KVPlan:
    """``kept_bytes``: how far past prompts may make the process grow; ``None``: no limit.
    ``leaves_room``: no setting claims the whole budget, so ``shared_budget`` of it is used.
    Adapters get ``adapter_bytes`` first, as far as ``ADAPTERS_SHARE`` goes, then recurrent layers
    their states. ``num_positions``: what the model was built for, if fewer than it declares. Raises
    ``DoesNotFitError``."""
    adapter_bytes = min(adapter_bytes, int(budget_bytes * ADAPTERS_SHARE))
    budget_bytes -= adapter_bytes
    states = plan_states(
        cache_layout(config),
        budget_bytes=budget_bytes,
        max_sequences=max_sequences,
        leaves_room=leaves_room,
    )
    budget_bytes -= states.state_bytes
    max_sequences = states.max_sequences
    block_bytes = kv_bytes_per_block(config, block_tokens, kv_format)
    if not block_bytes:
        return KVPlan(
            num_blocks=0,
            block_bytes=0,
            kept_blocks=0,
            context_tokens=0,
            context_reason="",
            states=states,
            adapter_bytes=adapter_bytes,
        )
    block_bytes += draft_block_bytes
    bounds = ContextBounds(
        model_tokens=config.max_positions,
        operator_tokens=max_context_tokens,
        kv_tokens=_kv_tokens(budget_bytes // block_bytes * block_tokens, num_positions),
        prefill=prefill,
    )
    if leaves_room:
        budget_bytes = shared_budget(
            budget_bytes,
            context_bytes=-(-bounds.unbound_by_kv_tokens // block_tokens) * block_bytes,
            sequences_bytes=max_sequences * TOKENS_PER_SEQUENCE // block_tokens * block_bytes,
        )
        kv_tokens = budget_bytes // block_bytes * block_tokens
        bounds = replace(bounds, kv_tokens=_kv_tokens(kv_tokens, num_positions))
    wanted = min(config.max_positions, max_context_tokens or config.max_positions)
    shortest = min(wanted, SHORTEST_USEFUL_CONTEXT)
    if bounds.unbound_by_kv_tokens < shortest:
        raise DoesNotFitError(_too_slow(bounds, shortest))
    if bounds.kv_tokens < shortest:
        needed = -(-shortest // block_tokens) * block_bytes
        raise DoesNotFitError(
            f"{budget_bytes / 1e6:.1f} MB are free for keys and values, but a context of "
            f"{shortest} tokens needs {needed / 1e6:.1f} MB"
        )
    blocks_per_context = -(-bounds.unbound_by_kv_tokens // block_tokens)
    num_blocks = min(budget_bytes // block_bytes, blocks_per_context * max_sequences)
    kept_blocks = num_blocks
    if kept_bytes is not None:
        kept_blocks = min(num_blocks, kept_bytes // block_bytes)
    return KVPlan(
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        kept_blocks=kept_blocks,
        context_tokens=bounds.tokens,
        context_reason="; ".join(filter(None, [bounds.reason(), states.in_words()])),
        states=states,
        adapter_bytes=adapter_bytes,
    )


def _kv_tokens(in_blocks: int, num_positions: int | None) -> int:
    return in_blocks if num_positions is None else min(in_blocks, num_positions)


def shared_budget(budget_bytes: int, *, context_bytes: int, sequences_bytes: int) -> int:
    """Leaves room for another model: takes enough for a few full contexts or some tokens of every
    sequence, but beyond one full context never more than half. A share below one context would
    shorten the context that clients see."""
    few_bytes = max(FEW_CONTEXTS * context_bytes, sequences_bytes)
    return min(budget_bytes, max(context_bytes, min(few_bytes, budget_bytes // 2)))


def positions_that_fit(config: ModelConfig, free_bytes: int, kv_format: KVFormat) -> int:
    """A quarter more than ``free_bytes`` hold: memory may be freed before KV is sized. No table of
    angles is made for positions that no memory can serve."""
    num_tables = len(ATTENTION_KINDS.intersection(config.mixer_kinds) - {"unrotated"})
    angle_bytes = num_tables * TABLE_COPIES * (config.rotary_dim or config.head_dim)
    return int(POSITIONS_MARGIN * free_bytes) // (
        kv_bytes_per_token(config, kv_format) + angle_bytes + GROWTH_BYTES
    )


def within_limit(budget_bytes: int, limit_bytes: int | None, taken_bytes: int) -> int:
    """``limit_bytes`` is the neuron's reservation."""
    if limit_bytes is None:
        return budget_bytes
    return max(0, min(budget_bytes, limit_bytes - taken_bytes))


def _too_slow(bounds: ContextBounds, shortest: int) -> str:
    assert bounds.prefill is not None, "nothing else makes it so short"
    return (
        f"a prompt of {shortest} tokens takes {bounds.prefill.speed.prompt_s(shortest):.0f} s here "
        f"and {bounds.prefill.max_prefill_s:g} s are allowed; allow more, or load a smaller model"
    )


def cpu_kv_share() -> float:
    """The share of what is free once the weights are loaded. Raises ``SettingError``."""
    share = CPU_KV_SHARE.read(os.environ)
    return DEFAULT_CPU_KV_SHARE if share is None else share


def kept_host_bytes(weight_bytes: int) -> int | None:
    """``None``, no limit within the budget, where HELEXA_CPU_KV_SHARE sets the budget."""
    if CPU_KV_SHARE.read(os.environ) is not None:
        return None
    return KEPT_PER_WEIGHT_BYTE * weight_bytes


def positions_of_part(spec: LoadSpec, opened: OpenedModel) -> int:
    """Before anything is built. ``spec`` and ``opened``: of the whole model or of one stage."""
    device, config = opened.factory.device, opened.config
    if opened.layers is not None:
        config = stage_config(config, opened.layers)
    is_native = device.type == "cpu" and spec.tensor_parallel == 1
    is_native = is_native and opened.factory.dtype == torch.float32
    kv_format = planned_kv_format(spec, device, is_native)
    return positions_that_fit(config, _expected_budget_bytes(spec, opened), kv_format)


def _expected_budget_bytes(spec: LoadSpec, opened: OpenedModel) -> int:
    if spec.kv_memory_bytes is not None:
        return spec.kv_memory_bytes
    device = opened.factory.device
    free_bytes = free_memory_bytes(device) - spec.promised_bytes - opened.need.load_bytes
    num_devices = spec.tensor_parallel // ranks_on_one_device(spec, device)
    share = cpu_kv_share() if device.type == "cpu" else 1
    return int(max(0, free_bytes) * num_devices * share)
