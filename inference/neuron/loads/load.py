"""One load: its devices, the memory that it needs and gets there, and the spec for its engine.

Pure. Without a device in the spec, a card goes before the CPU, and the freest card first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from inference.loading.sources.hub_sources import is_of_hub
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.memory_ledger import Claim
from inference.protocol.heartbeat import DeviceInfo, device_name
from inference.protocol.load import LoadSpec, StageSpec, own_stages
from inference.protocol.load_report import AsleepBytes, LoadFailure, LoadReport
from inference.settings.neuron import MEMORY_LIMIT

KINDS = ("cuda", "cpu")


def choose_devices(spec: LoadSpec, devices: Sequence[DeviceInfo]) -> list[str]:
    """``devices``: their free memory excludes promised memory. Raises ``LoadRefusedError``."""
    names = [stage.device for stage in own_stages(spec)] if spec.stages else spec.devices
    if not names or (not spec.stages and len(names) == 1 and names[0] in KINDS):
        return _freest(spec, devices)
    here = {device_name(device) for device in devices}
    for name in names:
        if full_name(name) not in here:
            raise _no_device(f"{name!r} is not here;", devices)
    return list(dict.fromkeys(full_name(name) for name in names))


def _freest(spec: LoadSpec, devices: Sequence[DeviceInfo]) -> list[str]:
    wanted = spec.devices or [next((kind for kind in KINDS if _of_kind(kind, devices)), "cpu")]
    candidates = _of_kind(wanted[0], devices)
    number = max(1, spec.min_devices, devices_of_ranks(spec, wanted[0]))
    if len(candidates) < number:
        raise _no_device(f"{number} {wanted[0]} devices are needed and", devices)
    freest_first = sorted(candidates, key=lambda device: (-device.free_memory_bytes, device.index))
    return [device_name(device) for device in freest_first[:number]]


def devices_of_ranks(spec: LoadSpec, device: str) -> int:
    """A host's CPUs count as one device, for all ranks."""
    return 1 if device == "cpu" else spec.tensor_parallel


def _of_kind(kind: str, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    return [device for device in devices if device.kind == kind]


def full_name(name: str) -> str:
    """``cuda`` beside another name is the first card, as in torch."""
    return "cuda:0" if name == "cuda" else name


def _no_device(message: str, devices: Sequence[DeviceInfo]) -> LoadRefusedError:
    here = ", ".join(device_name(device) for device in devices) or "no device"
    return _refused("no_device", f"{message} this neuron has {here}")


BESIDE_FILES_BYTES = 256 * 1024**2
LEAST_OF_FILES = {"q4": 0.125, "q5": 0.15625, "q6": 0.1875, "q8": 0.25, "fp8": 0.25}
"""Least ratio of a model's weights in memory to its files: 32-bit files shrink most. Weights not
quantised while loading need half of such files, in 16 bits.
"""
LEAST_OF_DENSE_FILES = 0.5
BY_LIMIT = f"in all by {MEMORY_LIMIT.name}"
OTHERS = "what other models were promised left out"


def needed_bytes(spec: LoadSpec, device: str) -> int | None:
    """By earlier loads on such a device, or by the plan of stages; ``None``: unknown."""
    if spec.stages:
        own = [one for one in own_stages(spec) if full_name(one.device) == device]
        return sum(stage.memory_bytes for stage in own) or None
    earlier = spec.earlier_loads
    if earlier is None or earlier.device_kind != device.partition(":")[0]:
        return None
    return None if earlier.needed_bytes is None else _on_each(earlier.needed_bytes, spec, device)


def expected_bytes(spec: LoadSpec, device: str, file_bytes: int | None) -> int:
    """Bytes to keep free for a waiting load; 0: unknown. ``file_bytes``: of its weight files on
    disk."""
    needed = needed_bytes(spec, device)
    if needed is not None:
        return needed
    if spec.stages:
        return 0
    kv_bytes = _on_each(spec.kv_memory_bytes or 0, spec, device)
    if file_bytes is None:
        return kv_bytes
    return _on_each(file_bytes, spec, device) + BESIDE_FILES_BYTES + kv_bytes


def least_bytes(spec: LoadSpec, device: str, file_bytes: int | None) -> int:
    needed = needed_bytes(spec, device)
    if needed is not None or file_bytes is None or spec.stages:
        return needed or 0
    share = LEAST_OF_FILES.get(spec.quantization, LEAST_OF_DENSE_FILES)
    return _on_each(int(share * file_bytes) + (spec.kv_memory_bytes or 0), spec, device)


def check_possible(spec: LoadSpec, devices: Sequence[DeviceInfo]) -> None:
    """Whether the load could fit on an empty host. Raises ``LoadRefusedError``."""
    here = {device_name(device): device for device in devices}
    is_named = spec.devices or spec.stages
    for name in choose_devices(spec, devices):
        candidates = [here[name]] if is_named else _of_kind(here[name].kind, devices)
        largest = max(candidates, key=lambda device: device.total_memory_bytes)
        total_bytes = largest.total_memory_bytes
        in_all = "in all" if largest.installed_memory_bytes is None else BY_LIMIT
        has = f"and {name} has {_gb(total_bytes)} {in_all}"
        kv_bytes = _on_each(spec.kv_memory_bytes or 0, spec, name)
        needed = needed_bytes(spec, name) or 0
        if kv_bytes > total_bytes:
            raise _refused(
                "exceeds_device",
                f"{_gb(kv_bytes)} of memory for keys and values are asked for, {has}; ask for "
                "less, or leave it empty",
            )
        if needed > total_bytes:
            source = "its plan" if spec.stages else "what earlier loads took"
            raise _refused(
                "exceeds_device",
                f"the model needs {_gb(needed)}, by {source}, {has}; load a smaller quant, or ask "
                "for less KV memory",
            )


def check_room(
    spec: LoadSpec,
    device: str,
    limit_bytes: int,
    evicted: Iterable[str] = (),
    file_bytes: int | None = None,
) -> None:
    """``limit_bytes`` includes the memory of ``evicted``. Raises ``LoadRefusedError``."""
    kv_bytes = _on_each(spec.kv_memory_bytes or 0, spec, device)
    needed = max(least_bytes(spec, device, file_bytes), kv_bytes)
    if needed > limit_bytes:
        once = f" once {gone} is unloaded" if (gone := ", ".join(evicted)) else ""
        raise _refused(
            "does_not_fit",
            f"the model needs {_gb(needed)} on {device}, and {_gb(limit_bytes)} are free there"
            f"{once}, {OTHERS}; unload another model, or load a smaller quant",
            needed,
        )


def waking_bytes(used_bytes: int, asleep: AsleepBytes, device: str) -> int:
    return max(0, used_bytes - asleep.on(device))


def check_waking(needed: int, device: str, limit_bytes: int, evicted: Iterable[str] = ()) -> None:
    """Raises ``LoadRefusedError``."""
    if needed > limit_bytes:
        once = f" once {gone} has left" if (gone := ", ".join(evicted)) else ""
        raise _refused(
            "does_not_fit",
            f"the model sleeps and needs {_gb(needed)} more on {device} to wake, and "
            f"{_gb(limit_bytes)} are free there{once}, {OTHERS}; unload another model",
        )


def lost_its_room(models: Iterable[str]) -> LoadRefusedError:
    names = ", ".join(models)
    return _refused(
        "lost_its_room",
        f"{names} was to make room for the model and has work again: nothing was unloaded",
    )


def _on_each(num_bytes: int, spec: LoadSpec, device: str) -> int:
    """Counts none for stages, whose part of keys and values depends on their layers."""
    if spec.stages:
        return 0
    return -(-num_bytes // devices_of_ranks(spec, device))


def _refused(code: str, message: str, needed_bytes: int | None = None) -> LoadRefusedError:
    return LoadRefusedError(LoadFailure(code=code, message=message, needed_bytes=needed_bytes))


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


@dataclass(slots=True, eq=False)
class Load:
    spec: LoadSpec
    devices: tuple[str, ...] = ()
    claims: dict[str, Claim] = field(default_factory=dict)
    host_claim: Claim | None = None
    pid: int | None = None
    free_at_start: dict[str, int] = field(default_factory=dict)
    free_before: dict[str, int] = field(default_factory=dict)
    """Within the operator's limits. Kept after the load has ended."""
    is_settled: bool = False
    """Its memory was measured: its engine may start again in that."""
    weights: tuple[Path, ...] = ()
    file_bytes: int | None = None
    new_files: dict[str, list[str]] = field(default_factory=dict)
    """As in ``inference.loading.sources.fetch``."""
    file_identity: str | None = None
    """As by ``sources.local_identity`` when the load began."""
    used: dict[str, int] = field(default_factory=dict)
    """Empty: not measured."""
    asleep: AsleepBytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    limits: Mapping[str, int]
    promised: Mapping[str, int]
    """Free bytes promised to others, or beyond the operator's limit."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.limits)

    @property
    def limit_bytes(self) -> int:
        return min(self.limits.values())

    def largest_bytes(self, spec: LoadSpec) -> int:
        return sum(self.limits.values()) if spec.stages else self.limit_bytes


def spec_for_engine(load: Load, room: Room) -> LoadSpec:
    """Drops the hash of a fetched file: it was compared, and large files take minutes. A wheel's is
    also its name in the cache."""
    is_checked = bool(load.weights) and is_of_hub(load.spec.source)
    own = own_stages(load.spec)
    stages = [_stage_for_engine(one, room) if one in own else one for one in load.spec.stages]
    return msgspec.structs.replace(
        load.spec,
        sha256=None if is_checked else load.spec.sha256,
        devices=list(room.devices),
        promised_bytes=max(room.promised.values()),
        memory_limit_bytes=room.limit_bytes,
        stages=stages,
    )


def _stage_for_engine(stage: StageSpec, room: Room) -> StageSpec:
    device = full_name(stage.device)
    return msgspec.structs.replace(
        stage,
        device=device,
        promised_bytes=room.promised[device],
        memory_limit_bytes=room.limits[device],
    )


def used_by_device(load: Load, report: LoadReport) -> dict[str, int]:
    """Empty where the load measured nothing."""
    if report.actual_bytes == 0:
        return {}
    if load.spec.stages:
        return {one.device: one.process_bytes + one.actual_bytes for one in report.stage_memory}
    used_bytes = report.process_bytes + report.actual_bytes
    return dict.fromkeys(load.devices, used_bytes // max(1, len(load.devices)))
