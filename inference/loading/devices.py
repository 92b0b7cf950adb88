"""The device, dtype, KV format and free memory that a load spec means on this host."""

from __future__ import annotations

import torch

from inference.loading.host import host_memory
from inference.models.errors import UnsupportedKVError
from inference.models.kv_format import KVFormat
from inference.models.paged_kv import kv_format_on
from inference.protocol.load import EarlierLoads, LoadSpec
from inference.protocol.load_errors import BadSourceError


def choose_device(spec: LoadSpec, rank: int = 0) -> torch.device:
    """Raises ``BadSourceError``."""
    num_ranks, number = spec.tensor_parallel, max(spec.min_devices, len(spec.devices))
    if number > 1 and number != num_ranks:
        raise BadSourceError(
            f"{number} devices are given to a replica of {num_ranks} "
            f"{'ranks' if num_ranks > 1 else 'rank'}: set tensor_parallel to {number}"
        )
    if not spec.devices:
        return torch.device(f"cuda:{rank}" if torch.cuda.is_available() else "cpu")
    named = spec.devices[rank if len(spec.devices) > 1 else 0]
    try:
        device = torch.device(named)
    except RuntimeError:
        raise BadSourceError(f"{named!r} is not a device; write cpu or cuda:0") from None
    if num_ranks > len(spec.devices) and device.type != "cpu":
        raise BadSourceError(
            f"{num_ranks} ranks want {num_ranks} cards and have {', '.join(spec.devices)}; set "
            f"tensor_parallel to {len(spec.devices)}"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadSourceError(f"{device} is not here; there are {torch.cuda.device_count()}")
    if device.type not in ("cpu", "cuda"):
        raise BadSourceError(f"{device} is not supported; use cpu or cuda:0")
    return torch.device(device.type, device.index or 0) if device.type == "cuda" else device


def ranks_on_one_device(spec: LoadSpec, device: torch.device) -> int:
    return spec.tensor_parallel if device.type == "cpu" else 1


def use_device(device: torch.device) -> None:
    """Triton's launches, graphs and events go to the current card, wherever tensors are."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def choose_dtype(spec: LoadSpec, device: torch.device) -> torch.dtype:
    """The dtype of activations."""
    if spec.dtype != "auto":
        dtype: torch.dtype = getattr(torch, spec.dtype)
        return dtype
    if device.type == "cpu":
        return torch.float32
    bfloat16 = torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.bfloat16 if bfloat16 else torch.float16


def earlier_loads_on(spec: LoadSpec, device: torch.device) -> EarlierLoads | None:
    earlier = spec.earlier_loads
    return earlier if earlier is not None and earlier.device_kind == device.type else None


def free_memory_bytes(device: torch.device) -> int:
    """On a CPU: of the host, or of the control group where that is less."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return int(free_bytes)
    return host_memory().free_bytes


def wanted_kv_format(spec: LoadSpec) -> KVFormat | None:
    return None if spec.kv_dtype == "auto" else spec.kv_dtype


def planned_kv_format(spec: LoadSpec, device: torch.device, is_native: bool) -> KVFormat:
    """Raises ``BadSourceError``."""
    try:
        return kv_format_on(
            device, wanted_kv_format(spec), choose_dtype(spec, device), is_native=is_native
        )
    except UnsupportedKVError as error:
        raise BadSourceError(str(error)) from None
