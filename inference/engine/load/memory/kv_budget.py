"""How much memory a built model's keys and values get, measured on its device."""

from __future__ import annotations

import torch

from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.built_model import BuiltModel
from inference.engine.load.memory.kv_memory import (
    KVPlan,
    cpu_kv_share,
    free_cuda_bytes,
    kept_host_bytes,
    plan_kv,
    within_limit,
)
from inference.engine.ranks.lead import rank_budget_bytes
from inference.engine.stages.memory import staged_kv_plan
from inference.loading.devices import free_memory_bytes, ranks_on_one_device
from inference.loading.loader import OpenedModel
from inference.models.adapter import planned_adapter_bytes
from inference.protocol.load import LoadSpec


def kv_plan(spec: LoadSpec, opened: OpenedModel, built: BuiltModel) -> KVPlan:
    if built.staged is not None:
        return staged_kv_plan(spec, built.staged, built.trial, built.num_positions)
    model = built.model
    is_asked = spec.kv_memory_bytes is not None
    is_cpu = model.device.type != "cuda"
    return plan_kv(
        model.config,
        budget_bytes=_kv_budget_bytes(spec, built),
        block_tokens=DEFAULT_BLOCK_TOKENS,
        kv_format=model.kv_format,
        max_context_tokens=spec.max_context_tokens,
        max_sequences=spec.max_concurrent_sequences,
        prefill=built.trial.bound,
        kept_bytes=kept_host_bytes(opened.weight_bytes) if is_cpu and not is_asked else None,
        leaves_room=not is_cpu and not is_asked,
        draft_block_bytes=built.draft_block_bytes,
        adapter_bytes=0 if is_cpu or is_asked else _adapter_bytes(spec, built),
        num_positions=built.num_positions,
    )


def _adapter_bytes(spec: LoadSpec, built: BuiltModel) -> int:
    """What all adapter slots take. A model that ranks share has none."""
    if built.ranked is not None:
        return 0
    model = built.model
    return spec.adapter_slots * planned_adapter_bytes(model.config, model.dtype.itemsize)


def _kv_budget_bytes(spec: LoadSpec, built: BuiltModel) -> int:
    """Measured now, less what other models were promised and what this one may not take."""
    if spec.kv_memory_bytes is not None:
        return spec.kv_memory_bytes // spec.tensor_parallel
    model, trial = built.model, built.trial
    moment_bytes, num_here = 0, ranks_on_one_device(spec, model.device)
    if model.device.type == "cuda":
        held_bytes = torch.cuda.memory_allocated(model.device)
        moment_bytes = trial.load_bytes - held_bytes
        moment_bytes += model.captured_bytes(spec.max_concurrent_sequences)
        if built.draft is not None:
            moment_bytes += built.draft.model.captured_bytes(spec.max_concurrent_sequences)
        free_bytes = free_cuda_bytes(model.device, moment_bytes)
        budget_bytes = max(0, free_bytes - spec.promised_bytes - model.config.kept_rows_bytes)
    else:
        taken_bytes = spec.promised_bytes + model.config.kept_rows_bytes
        free_bytes = max(0, free_memory_bytes(model.device) - taken_bytes)
        budget_bytes = int(free_bytes * cpu_kv_share())
    if built.ranked is not None:
        budget_bytes = rank_budget_bytes(built.ranked, spec, budget_bytes, moment_bytes)
    limit_bytes = spec.memory_limit_bytes
    return within_limit(
        budget_bytes,
        None if limit_bytes is None else limit_bytes // num_here,
        trial.process_bytes + trial.load_bytes + model.config.kept_rows_bytes,
    )
