"""What this host is: cores, memory, CUDA devices, and in words what is wrong with them.

Asks the operating system through psutil and the NVIDIA driver through NVML. No torch, so it works
where the driver is broken, which is when it matters. A driver may also hang: whoever must not wait
for it asks through a ``DeviceSampler``.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

from inference.loading.host_memory import host_memory
from inference.neuron.held_memory import held_bytes
from inference.neuron.versions import driver_cuda, installed_torch
from inference.protocol.heartbeat import DeviceInfo, HostInfo
from inference.settings.neuron import DEVICE

log = logging.getLogger(__name__)

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR_ID = "0x10de"
DISPLAY_CLASS_PREFIX = "0x03"


@dataclass(slots=True)
class _CudaDevice:
    handle: Any
    info: DeviceInfo


@dataclass(slots=True)
class Discovery:
    """Looked up once; ``host`` and ``devices`` refresh the free memory."""

    problems: list[str] = field(default_factory=list)
    cuda_unavailable: str = ""
    """Why the host's cards cannot be used."""
    cuda_version: str = ""
    """The newest CUDA that the driver runs."""
    _cuda: list[_CudaDevice] = field(default_factory=list)
    _nvml: Any = pynvml

    @classmethod
    def run(
        cls,
        nvml: Any = pynvml,
        *,
        has_nvidia_hardware: bool | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Discovery:
        """Never raises for what the host is like: faults are named in ``problems``."""
        discovery = cls(_nvml=nvml)
        if DEVICE.read(environment) == "cpu":
            return discovery  # the operator's way out of a broken driver: no card is looked for
        if has_nvidia_hardware is None:
            has_nvidia_hardware = _has_nvidia_hardware()
        try:
            nvml.nvmlInit()
            discovery._cuda = _visible(_cuda_devices(nvml), nvml, environment)
            discovery.cuda_version = driver_cuda(nvml) or ""
        except nvml.NVMLError as error:
            problem = _nvml_problem(nvml, error, has_nvidia_hardware)
            if problem:
                discovery.problems.append(problem)
                discovery.cuda_unavailable = problem
                log.warning("%s", problem)
        return discovery

    def host(self) -> HostInfo:
        memory, torch = host_memory(), installed_torch()
        return HostInfo(
            hostname=socket.gethostname(),
            os=_os_name(),
            kernel=f"{platform.system()} {platform.release()}",
            num_cores=_num_cores(),
            total_memory_bytes=memory.total_bytes,
            free_memory_bytes=memory.free_bytes,
            problems=list(self.problems),
            cuda_unavailable=self.cuda_unavailable,
            cuda_version=self.cuda_version if self._cuda else "",
            torch_version=torch.version or "",
            torch_cuda_version=torch.cuda or "",
        )

    def devices(self) -> list[DeviceInfo]:
        """The CUDA devices, asked now, and the CPU last."""
        return [*self.cuda_devices(), cpu_device()]

    def cuda_devices(self) -> list[DeviceInfo]:
        return [self._with_free_memory(device, index) for index, device in enumerate(self._cuda)]

    measure = devices

    def held_bytes(self, pid: int) -> int:
        """What that process holds of the host's memory."""
        return held_bytes(pid)

    def _with_free_memory(self, device: _CudaDevice, index: int) -> DeviceInfo:
        info, handle, nvml = device.info, device.handle, self._nvml
        try:
            free = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
        except nvml.NVMLError as error:
            free = 0  # nothing may be placed on a device that does not answer
            problem = f"{info.name} (device {index}) no longer answers: {error}"
            if problem not in self.problems:
                self.problems.append(problem)
                log.error("%s", problem)
        return DeviceInfo(
            index=index,
            kind="cuda",
            name=info.name,
            total_memory_bytes=info.total_memory_bytes,
            free_memory_bytes=free,
            compute_capability=info.compute_capability,
            driver=info.driver,
            utilization_percent=_told(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            temperature_c=_told(
                nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            power_w=_watts(_told(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
        )


def cpu_device() -> DeviceInfo:
    """The host's CPUs together, and its memory now."""
    memory = host_memory()
    return DeviceInfo(
        index=0,
        kind="cpu",
        name=_cpu_name(),
        total_memory_bytes=memory.total_bytes,
        free_memory_bytes=memory.free_bytes,
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _told(nvml: Any, read: Callable[[], int]) -> int | None:
    """Some devices do not tell, among them parts of one (MIG)."""
    try:
        return int(read())
    except nvml.NVMLError:
        return None


def _cuda_devices(nvml: Any) -> list[_CudaDevice]:
    """In NVML's order, which is that of the PCI bus."""
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    devices = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        info = DeviceInfo(
            index=index,
            kind="cuda",
            name=_text(nvml.nvmlDeviceGetName(handle)),
            total_memory_bytes=int(memory.total),
            free_memory_bytes=int(memory.free),
            compute_capability=f"{major}.{minor}",
            driver=driver,
        )
        devices.append(_CudaDevice(handle, info))
    return devices


def _visible(
    devices: list[_CudaDevice], nvml: Any, environment: Mapping[str, str]
) -> list[_CudaDevice]:
    """The cards that CUDA_VISIBLE_DEVICES leaves to engines, in its order. Entries are numbers or
    (starts of) UUIDs; as in CUDA, the first that matches nothing ends the list."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return devices
    chosen = []
    for word in listed.replace(" ", "").split(","):
        if word.isdigit() and int(word) < len(devices):
            chosen.append(devices[int(word)])
            continue
        matching = [
            device
            for device in devices
            if word and _text(nvml.nvmlDeviceGetUUID(device.handle)).startswith(word)
        ]
        if not matching:
            break
        chosen.append(matching[0])
    return chosen


def _nvml_problem(nvml: Any, error: Exception, has_nvidia_hardware: bool) -> str | None:
    """What is wrong and the fix, for people. ``None``: nothing is, there is no NVIDIA GPU."""
    code = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return (
            "the NVIDIA driver in the kernel and its library are of different versions (the driver "
            "was updated while it was loaded): reboot, or unload and load the nvidia modules"
        )
    if code == nvml.NVML_ERROR_NO_PERMISSION:
        return (
            "no permission to use the NVIDIA devices: add this user to the group of /dev/nvidia*"
            " or pass the devices into the container"
        )
    if code in (nvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NVML_ERROR_LIBRARY_NOT_FOUND):
        if not has_nvidia_hardware:
            return None
        return "there is an NVIDIA GPU but no working driver: install or load the NVIDIA driver"
    return f"the NVIDIA driver does not answer: {error}"


def _has_nvidia_hardware() -> bool:
    return any(
        _read(device / "vendor") == NVIDIA_VENDOR_ID
        and _read(device / "class").startswith(DISPLAY_CLASS_PREFIX)
        for device in (PCI_DEVICES.iterdir() if PCI_DEVICES.is_dir() else ())
    )


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.platform())
    except OSError:
        return platform.platform()


@cache
def _cpu_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
