"""How many blocks and state slots a built model gets of the memory that is left on its device. A
model of several stages gets as many as every device has room for: blocks have the same ids on all
stages, so the smallest decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.errors import DoesNotFitError
from inference.engine.load.built_model import BuiltModel
from inference.engine.load.kv_memory import (
    CUDA_MARGIN_BYTES,
    KVPlan,
    PrefillBound,
    StatePlan,
    cpu_kv_share,
    kept_host_bytes,
    plan_kv,
    plan_states,
    within_limit,
)
from inference.engine.load.memory_use import allocated_bytes, free_cached
from inference.engine.load.sleeper import asleep_bytes, asleep_together
from inference.engine.load.trial import DeviceTrial, Trial
from inference.engine.ranks.lead import rank_budget_bytes
from inference.engine.stages.built_stages import DevicePart, device_parts
from inference.engine.stages.messages import StageMemory
from inference.engine.stages.staged_model import StagedModel
from inference.loading.devices import free_memory_bytes, ranks_on_one_device
from inference.loading.loader import OpenedModel
from inference.models.adapter import planned_adapter_bytes
from inference.models.backend import RemoteDevice
from inference.models.cache.kv_format import KVFormat, cache_layout, kv_bytes_per_block
from inference.models.config import ModelConfig
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import AsleepBytes


def kv_plan(spec: LoadSpec, opened: OpenedModel, built: BuiltModel) -> KVPlan:
    """Raises ``DoesNotFitError``."""
    if built.staged is not None:
        return staged_kv_plan(spec, built.staged, built.trial, built.num_positions)
    model = built.model
    return _plan(
        spec,
        model.config,
        model.device.type,
        model.kv_format,
        budget_bytes=_own_budget_bytes(spec, built),
        weight_bytes=opened.weight_bytes,
        adapter_dtype=None if built.ranked is not None else model.dtype,
        prefill=built.trial.bound,
        num_positions=built.num_positions,
        draft_block_bytes=built.draft_block_bytes,
    )


def _own_budget_bytes(spec: LoadSpec, built: BuiltModel) -> int:
    """Measured now, less what other models were promised and within the limit of this one."""
    if spec.kv_memory_bytes is not None:
        return spec.kv_memory_bytes // spec.tensor_parallel
    model, trial = built.model, built.trial
    moment_bytes, num_here = 0, ranks_on_one_device(spec, model.device)
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
        moment_bytes = trial.load_bytes - torch.cuda.memory_allocated(model.device)
        moment_bytes += model.captured_bytes(spec.max_concurrent_sequences)
        if built.draft is not None:
            moment_bytes += built.draft.model.captured_bytes(spec.max_concurrent_sequences)
    kept_bytes = model.config.kept_rows_bytes
    budget_bytes = _share_of(
        model.device.type,
        free_memory_bytes(model.device) - spec.promised_bytes - kept_bytes,
        moment_bytes,
    )
    if built.ranked is not None:
        budget_bytes = rank_budget_bytes(built.ranked, spec, budget_bytes, moment_bytes)
    limit_bytes = spec.memory_limit_bytes
    return within_limit(
        budget_bytes,
        None if limit_bytes is None else limit_bytes // num_here,
        trial.process_bytes + trial.load_bytes + kept_bytes,
    )


def _share_of(device_type: str, free_bytes: int, moment_bytes: int) -> int:
    """A card's free bytes are all for keys and values, but for the margin and for ``moment_bytes``,
    which the largest step takes beside what the model holds; a host's are shared."""
    if device_type == "cuda":
        return max(0, free_bytes - moment_bytes - CUDA_MARGIN_BYTES)
    return int(max(0, free_bytes) * cpu_kv_share())


def _plan(
    spec: LoadSpec,
    config: ModelConfig,
    device_type: str,
    kv_format: KVFormat,
    *,
    budget_bytes: int,
    weight_bytes: int,
    adapter_dtype: torch.dtype | None,
    prefill: PrefillBound,
    num_positions: int | None,
    draft_block_bytes: int = 0,
) -> KVPlan:
    """``adapter_dtype``: ``None`` for a model without adapters. ``num_positions``: how many the
    model was built for, where that is fewer than it declares."""
    is_asked, is_cpu = spec.kv_memory_bytes is not None, device_type == "cpu"
    leaves_room = not is_cpu and not is_asked
    adapter_bytes = 0
    if leaves_room and adapter_dtype is not None:
        adapter_bytes = spec.adapter_slots * planned_adapter_bytes(config, adapter_dtype.itemsize)
    return plan_kv(
        config,
        budget_bytes=budget_bytes,
        block_tokens=DEFAULT_BLOCK_TOKENS,
        kv_format=kv_format,
        max_context_tokens=spec.max_context_tokens,
        max_sequences=spec.max_concurrent_sequences,
        prefill=prefill,
        kept_bytes=kept_host_bytes(weight_bytes) if is_cpu and not is_asked else None,
        leaves_room=leaves_room,
        draft_block_bytes=draft_block_bytes,
        adapter_bytes=adapter_bytes,
        num_positions=num_positions,
    )


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The room on one device. ``kv`` is ``None`` where its layers have no keys."""

    kv: KVPlan | None
    states: StatePlan
    block_bytes: int
    slot_bytes: int


def staged_kv_plan(
    spec: LoadSpec, model: StagedModel, trial: Trial, num_positions: int | None
) -> KVPlan:
    """``num_positions``: how many the model was built for, where that is fewer than it declares.
    Raises ``DoesNotFitError``, by the device."""
    parts, plans = list(device_parts(model)), []
    for part, of_part in zip(parts, trial.devices, strict=True):
        memory = _memory_now(model, part)
        budget_bytes = _budget_bytes(spec, parts, part, of_part, memory)
        plans.append(_plan_part(spec, part, budget_bytes, trial, num_positions))
    return smallest_plan(plans)


def staged_asleep_bytes(model: StagedModel, trial: Trial) -> AsleepBytes | None:
    """Bytes of its devices that the model will hold at most while it sleeps, before its KV is
    there. ``None`` with stages on other hosts: no neuron there checks whether its host has room for
    the weights, or would give their device to others meanwhile."""
    parts = list(device_parts(model))
    if any(isinstance(part.device, RemoteDevice) for part in parts):
        return None
    return asleep_together(
        [
            (str(part.device), asleep_bytes(of_part, _memory_now(model, part).held_bytes))
            for part, of_part in zip(parts, trial.devices, strict=True)
        ]
    )


def _memory_now(model: StagedModel, part: DevicePart) -> StageMemory:
    """The device's memory once everything is loaded, as the processes of its stages measure it."""
    processes = model.processes
    measured = [processes.memory(index) for index in part.processes]
    if part.has_head:
        assert isinstance(part.device, torch.device), "the first stage's"
        free_cached(part.device)
        held_bytes, free_bytes = allocated_bytes(part.device), free_memory_bytes(part.device)
        measured.append(StageMemory(used_bytes=0, held_bytes=held_bytes, free_bytes=free_bytes))
    return StageMemory(
        used_bytes=sum(one.used_bytes for one in measured),
        held_bytes=sum(one.held_bytes for one in measured),
        free_bytes=min(one.free_bytes for one in measured),
    )


def smallest_plan(plans: Sequence[PartPlan]) -> KVPlan:
    """The smallest of ``plans``; bytes are of all devices together."""
    of_blocks = [plan.kv for plan in plans if plan.kv is not None]
    of_states = [plan.states for plan in plans if plan.states.num_slots]
    shortest = min(of_blocks, key=lambda plan: plan.context_tokens)
    num_blocks = min(plan.num_blocks for plan in of_blocks)
    num_slots = min((states.num_slots for states in of_states), default=0)
    states = StatePlan(
        num_slots=num_slots,
        state_bytes=num_slots * sum(plan.slot_bytes for plan in plans),
        max_sequences=min(plan.states.max_sequences for plan in plans),
    )
    return KVPlan(
        num_blocks=num_blocks,
        kv_bytes=num_blocks * sum(plan.block_bytes for plan in plans),
        kept_blocks=min(num_blocks, *(plan.kept_blocks for plan in of_blocks)),
        context_tokens=shortest.context_tokens,
        context_reason=shortest.context_reason,
        states=states,
        adapter_bytes=sum(plan.adapter_bytes for plan in of_blocks),
    )


def _plan_part(
    spec: LoadSpec, part: DevicePart, budget_bytes: int, trial: Trial, num_positions: int | None
) -> PartPlan:
    layout, device_type = cache_layout(part.config), part.device.type
    block_bytes = kv_bytes_per_block(part.config, DEFAULT_BLOCK_TOKENS, part.kv_format)
    try:
        if not block_bytes:
            states = plan_states(
                layout,
                budget_bytes=budget_bytes,
                max_sequences=spec.max_concurrent_sequences,
                leaves_room=device_type != "cpu" and spec.kv_memory_bytes is None,
            )
            return PartPlan(None, states, 0, layout.state_bytes_per_slot)
        plan = _plan(
            spec,
            part.config,
            device_type,
            part.kv_format,
            budget_bytes=budget_bytes,
            weight_bytes=part.weight_bytes,
            adapter_dtype=torch.bfloat16,
            prefill=trial.bound,
            num_positions=num_positions,
        )
    except DoesNotFitError as error:
        raise DoesNotFitError(f"{part.device}: {error}") from None
    return PartPlan(plan, plan.states, block_bytes, layout.state_bytes_per_slot)


def _budget_bytes(
    spec: LoadSpec,
    parts: Sequence[DevicePart],
    part: DevicePart,
    trial: DeviceTrial,
    memory: StageMemory,
) -> int:
    """Returns the bytes for the device's keys, values and states: measured now, or its part of what
    the operator asked for."""
    if spec.kv_memory_bytes is not None:
        sizes = {one.device: _unit_bytes(one) for one in parts}
        return spec.kv_memory_bytes * sizes[part.device] // sum(sizes.values())
    limits = [one.memory_limit_bytes for one in part.specs if one.memory_limit_bytes is not None]
    kept_bytes = part.config.kept_rows_bytes if part.has_head else 0
    promised_bytes = max(one.promised_bytes for one in part.specs)
    budget_bytes = _share_of(
        part.device.type,
        memory.free_bytes - promised_bytes - kept_bytes,
        trial.load_bytes - memory.held_bytes,
    )
    own_bytes = trial.process_bytes + trial.load_bytes + kept_bytes
    return within_limit(budget_bytes, min(limits, default=None), own_bytes)


def _unit_bytes(part: DevicePart) -> int:
    """Bytes of a block and a state slot."""
    block_bytes = kv_bytes_per_block(part.config, DEFAULT_BLOCK_TOKENS, part.kv_format)
    return block_bytes + cache_layout(part.config).state_bytes_per_slot
