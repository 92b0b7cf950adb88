"""Which of this host's devices a load goes to. Pure; the one place that decides it.

What the spec names is taken; what it leaves open is chosen here: a card before the CPU, and of the
cards the freest. The names go into the engine's spec, and from there into reports and heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inference.neuron.errors import LoadRefusedError
from inference.protocol.heartbeat import DeviceInfo, device_name
from inference.protocol.load import LoadSpec, own_stages
from inference.protocol.load_progress import LoadFailure

KINDS = ("cuda", "cpu")
"""The kinds of devices in the order in which they are chosen."""


def choose_devices(spec: LoadSpec, devices: Sequence[DeviceInfo]) -> list[str]:
    """Names of ``devices``, whose free memory excludes promised memory. Raises
    ``LoadRefusedError`` for a device that is not here."""
    if spec.stages:
        return _of_stages(spec, devices)
    if not spec.devices or (len(spec.devices) == 1 and spec.devices[0] in KINDS):
        return _freest(spec, devices)
    return _named(spec.devices, devices)


def _of_stages(spec: LoadSpec, devices: Sequence[DeviceInfo]) -> list[str]:
    """Each once, that of the first stage first."""
    return list(dict.fromkeys(_named([stage.device for stage in own_stages(spec)], devices)))


def _named(names: Sequence[str], devices: Sequence[DeviceInfo]) -> list[str]:
    here = {device_name(device): device for device in devices}
    for name in names:
        if full_name(name) not in here:
            raise _refused(f"{name!r} is not here; this neuron has {_listed(here)}")
    return [full_name(name) for name in names]


def _freest(spec: LoadSpec, devices: Sequence[DeviceInfo]) -> list[str]:
    wanted = spec.devices or [next((kind for kind in KINDS if _of_kind(kind, devices)), "cpu")]
    candidates = _of_kind(wanted[0], devices)
    number = max(1, spec.min_devices, devices_of_ranks(spec, wanted[0]))
    if len(candidates) < number:
        here = _listed([device_name(device) for device in devices])
        raise _refused(f"{number} {wanted[0]} devices are needed and this neuron has {here}")
    freest_first = sorted(candidates, key=lambda device: (-device.free_memory_bytes, device.index))
    return [device_name(device) for device in freest_first[:number]]


def devices_of_ranks(spec: LoadSpec, device: str) -> int:
    """How many devices of ``device``'s kind share the model: a host's CPUs are one, for all
    ranks."""
    return 1 if device == "cpu" else spec.tensor_parallel


def _of_kind(kind: str, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    return [device for device in devices if device.kind == kind]


def full_name(name: str) -> str:
    """``cuda`` beside another name is the first card, as in torch."""
    return "cuda:0" if name == "cuda" else name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "no device"


def _refused(message: str) -> LoadRefusedError:
    return LoadRefusedError(LoadFailure(code="no_device", message=message))
