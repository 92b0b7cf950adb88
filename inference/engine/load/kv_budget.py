"""How many blocks and state slots a built model gets. Blocks have the same ids on all stages, so
the device with the least room decides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.engine.divided.built_stages import DevicePart, device_parts
from inference.engine.divided.ranked_model import RankedModel
from inference.engine.divided.stage_messages import StageMemory
from inference.engine.errors import DoesNotFitError
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.built_model import BuiltModel
from inference.engine.load.kv_memory import (
    CUDA_MARGIN_BYTES,
    KVPlan,
    StatePlan,
    cpu_kv_share,
    kept_host_bytes,
    plan_kv,
    within_limit,
)
from inference.engine.load.memory_use import allocated_bytes, free_cached
from inference.engine.load.sleeper import asleep_bytes, asleep_together
from inference.engine.load.trial import DeviceTrial
from inference.loading.devices import free_memory_bytes, ranks_on_one_device
from inference.models.adapter import planned_adapter_bytes
from inference.models.backend import RemoteDevice
from inference.models.kv_format import cache_layout, kv_bytes_per_block
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import AsleepBytes


def kv_plan(built: BuiltModel) -> KVPlan:
    """Raises ``DoesNotFitError``."""
    parts = _parts(built)
    budgets = [
        _budget_bytes(built, parts, part, trial)
        for part, trial in zip(parts, built.trial.devices, strict=True)
    ]
    plans = [
        _plan_part(built, part, budget_bytes)
        for part, budget_bytes in zip(parts, budgets, strict=True)
    ]
    return smallest_plan(plans)


def asleep_at_most(built: BuiltModel) -> AsleepBytes | None:
    """Before KV is allocated. ``None`` with stages on other hosts: no neuron there checks whether
    its host has room for the weights, or would give their device to others meanwhile."""
    parts = _parts(built)
    if any(isinstance(part.device, RemoteDevice) for part in parts):
        return None
    held = [
        (str(part.device), asleep_bytes(trial, _memory_now(built, part).held_bytes))
        for part, trial in zip(parts, built.trial.devices, strict=True)
    ]
    return held[0][1] if built.staged is None else asleep_together(held)


def _parts(built: BuiltModel) -> list[DevicePart]:
    if built.staged is not None:
        return list(device_parts(built.staged))
    spec, model = built.spec, built.model
    limit_bytes = spec.memory_limit_bytes
    if limit_bytes is not None:
        limit_bytes //= ranks_on_one_device(spec, model.device)
    whole = DevicePart(
        device=model.device,
        promised_bytes=spec.promised_bytes,
        limit_bytes=limit_bytes,
        config=model.config,
        kv_format=model.kv_format,
        weight_bytes=built.weight_bytes,
        has_head=True,
        processes=(),
    )
    return [whole]


def _memory_now(built: BuiltModel, part: DevicePart) -> StageMemory:
    measured = []
    if built.staged is not None:
        measured = [built.staged.processes.memory(index) for index in part.processes]
    if part.has_head:
        assert isinstance(part.device, torch.device), "this process's"
        free_cached(part.device)
        held_bytes, free_bytes = allocated_bytes(part.device), free_memory_bytes(part.device)
        measured.append(StageMemory(used_bytes=0, held_bytes=held_bytes, free_bytes=free_bytes))
    return StageMemory(
        used_bytes=sum(one.used_bytes for one in measured),
        held_bytes=sum(one.held_bytes for one in measured),
        free_bytes=min(one.free_bytes for one in measured),
    )


def _budget_bytes(
    built: BuiltModel, parts: Sequence[DevicePart], part: DevicePart, trial: DeviceTrial
) -> int:
    """Measured now, less what other models were promised and within this one's limit; or its part
    of what the operator asked for."""
    spec = built.spec
    if spec.kv_memory_bytes is not None:
        sizes = {one.device: _unit_bytes(one) for one in parts}
        asked_bytes = spec.kv_memory_bytes // spec.tensor_parallel
        return asked_bytes * sizes[part.device] // sum(sizes.values())
    memory, kept_bytes = _memory_now(built, part), 0
    moment_bytes = trial.load_bytes - memory.held_bytes
    if part.has_head:
        kept_bytes = part.config.kept_rows_bytes
        models = [built.model] if built.draft is None else [built.model, built.draft.model]
        moment_bytes += sum(one.captured_bytes(spec.max_concurrent_sequences) for one in models)
    free_bytes = memory.free_bytes - part.promised_bytes - kept_bytes
    if part.device.type == "cuda":
        # KV gets all but what the largest step takes beside the model.
        budget_bytes = max(0, free_bytes - moment_bytes - CUDA_MARGIN_BYTES)
    else:
        budget_bytes = int(max(0, free_bytes) * cpu_kv_share())
    if built.ranked is not None:
        budget_bytes = _rank_budget_bytes(built.ranked, spec, budget_bytes, moment_bytes)
    own_bytes = trial.process_bytes + trial.load_bytes + kept_bytes
    return within_limit(budget_bytes, part.limit_bytes, own_bytes)


def _rank_budget_bytes(
    model: RankedModel, spec: LoadSpec, budget_bytes: int, moment_bytes: int
) -> int:
    """A host's memory is all ranks'; of several cards the fullest decides."""
    if model.device.type == "cpu":
        return budget_bytes // model.num_ranks
    others = [
        max(0, memory.free_bytes - moment_bytes - CUDA_MARGIN_BYTES - spec.promised_bytes)
        for memory in model.memory
    ]
    return min(budget_bytes, *others)


def _plan_part(built: BuiltModel, part: DevicePart, budget_bytes: int) -> KVPlan:
    spec = built.spec
    is_asked, is_cpu = spec.kv_memory_bytes is not None, part.device.type == "cpu"
    leaves_room = not is_cpu and not is_asked
    adapter_bytes = 0
    if leaves_room and built.ranked is None:
        itemsize = built.model.dtype.itemsize if built.staged is None else 2
        adapter_bytes = spec.adapter_slots * planned_adapter_bytes(part.config, itemsize)
    try:
        return plan_kv(
            part.config,
            budget_bytes=budget_bytes,
            block_tokens=DEFAULT_BLOCK_TOKENS,
            kv_format=part.kv_format,
            max_context_tokens=spec.max_context_tokens,
            max_sequences=spec.max_concurrent_sequences,
            prefill=built.trial.bound,
            kept_bytes=kept_host_bytes(part.weight_bytes) if is_cpu and not is_asked else None,
            leaves_room=leaves_room,
            draft_block_bytes=built.draft_block_bytes,
            adapter_bytes=adapter_bytes,
            num_positions=built.num_positions,
        )
    except DoesNotFitError as error:
        if built.staged is None:
            raise
        raise DoesNotFitError(f"{part.device}: {error}") from None


def smallest_plan(plans: Sequence[KVPlan]) -> KVPlan:
    """Bytes are of all devices together."""
    of_blocks = [plan for plan in plans if plan.block_bytes]
    of_states = [plan.states for plan in plans if plan.states.num_slots]
    shortest = min(of_blocks, key=lambda plan: plan.context_tokens)
    num_blocks = min(plan.num_blocks for plan in of_blocks)
    return KVPlan(
        num_blocks=num_blocks,
        block_bytes=sum(plan.block_bytes for plan in of_blocks),
        kept_blocks=min(num_blocks, *(plan.kept_blocks for plan in of_blocks)),
        context_tokens=shortest.context_tokens,
        context_reason=shortest.context_reason,
        states=StatePlan(
            num_slots=min((states.num_slots for states in of_states), default=0),
            slot_bytes=sum(states.slot_bytes for states in of_states),
            max_sequences=min(plan.states.max_sequences for plan in plans),
        ),
        adapter_bytes=sum(plan.adapter_bytes for plan in plans),
    )


def _unit_bytes(part: DevicePart) -> int:
    block_bytes = kv_bytes_per_block(part.config, DEFAULT_BLOCK_TOKENS, part.kv_format)
    return block_bytes + cache_layout(part.config).state_bytes_per_slot
