"""How many positions the memory of a device can serve, before anything is built there."""

from __future__ import annotations

import torch

from inference.engine.load.memory.kv_memory import cpu_kv_share, positions_that_fit
from inference.loading.devices import free_memory_bytes, planned_kv_format, ranks_on_one_device
from inference.loading.loader import OpenedModel
from inference.models.stages.layer_range import stage_config
from inference.protocol.load import (
    LoadSpec,
)


def positions_of_part(spec: LoadSpec, opened: OpenedModel) -> int:
    """``spec`` and ``opened``: of the whole model, or of one stage of it."""
    device, config = opened.factory.device, opened.config
    if opened.layers is not None:
        config = stage_config(config, opened.layers)
    is_native = device.type == "cpu" and spec.tensor_parallel == 1
    is_native = is_native and opened.factory.dtype == torch.float32
    kv_format = planned_kv_format(spec, device, is_native)
    return positions_that_fit(config, _budget_bytes(spec, opened), kv_format)


def _budget_bytes(spec: LoadSpec, opened: OpenedModel) -> int:
    if spec.kv_memory_bytes is not None:
        return spec.kv_memory_bytes
    device = opened.factory.device
    free_bytes = free_memory_bytes(device) - spec.promised_bytes - opened.need.load_bytes
    num_devices = spec.tensor_parallel // ranks_on_one_device(spec, device)
    share = cpu_kv_share() if device.type == "cpu" else 1
    return int(max(0, free_bytes) * num_devices * share)
