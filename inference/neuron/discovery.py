"""Describes this host: cores, memory, CUDA devices, and sentences about their problems.

No torch, so it works where the driver is broken. A driver may also hang: the doctor runs this as a
process (``python -m``), and callers that must not wait use a ``DeviceSampler``.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pynvml

from inference.environment import Role, environment_for
from inference.loading.host import host_memory, triton_problem
from inference.neuron.cuda_cards import (
    CudaCard,
    card_now,
    driver_cuda,
    list_cards,
    visible_cards,
)
from inference.protocol.heartbeat import DeviceInfo, HostInfo
from inference.settings.neuron import DEVICE

log = logging.getLogger(__name__)


PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR_ID = "0x10de"
DISPLAY_CLASS_PREFIX = "0x03"
BUILT_FOR = re.compile(r"^cuda\b[^=]*= *'(?P<version>[\d.]+)'", re.MULTILINE)


@cache
def installed_torch() -> tuple[str | None, str | None]:
    """Its version, and the CUDA version that it was built for; ``None``: for CPUs."""
    try:
        found: Any = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None, None
    built = BUILT_FOR.search(found.locate_file("torch/version.py").read_text())
    return found.version, built["version"] if built else None


PROBE = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
TORCH_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class TorchProblem:
    message: str
    is_answered: bool
    """``False``: the probe timed out, so the next one may find no problem."""


def torch_problem(
    command: tuple[str, ...] = (sys.executable, "-c", PROBE), *, timeout_s: float = TORCH_TIMEOUT_S
) -> TorchProblem | None:
    """Also ``None`` where the probe itself failed."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment_for(Role.OTHER, os.environ),
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        message = f"PyTorch did not find the NVIDIA devices in {timeout_s:g} s: reboot this host"
        return TorchProblem(message, is_answered=False)
    except OSError:
        return None
    if done.returncode != 0 or done.stdout.strip() != b"0":
        return None
    message = (
        "PyTorch cannot use the NVIDIA devices of this host (a build without CUDA, or one that is "
        "too new for the driver): update the driver, or install a PyTorch build for it"
    )
    return TorchProblem(message, is_answered=True)


@dataclass(slots=True)
class Discovery:
    problems: list[str] = field(default_factory=list)
    cuda_unavailable: str = ""
    cuda_version: str = ""
    _cuda: list[CudaCard] = field(default_factory=list)
    _nvml: Any = pynvml

    @classmethod
    def run(
        cls,
        nvml: Any = pynvml,
        *,
        has_nvidia_hardware: bool | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Discovery:
        """Faults of the host are named in ``problems``, not raised."""
        discovery = cls(_nvml=nvml)
        if DEVICE.read(environment) == "cpu":
            return discovery  # the operator's way out of a broken driver: no card is looked for
        if has_nvidia_hardware is None:
            has_nvidia_hardware = _has_nvidia_hardware()
        try:
            nvml.nvmlInit()
            cards, problems = list_cards(nvml)
            discovery._cuda = visible_cards(cards, nvml, environment)
            discovery.cuda_version = driver_cuda(nvml) or ""
        except nvml.NVMLError as error:
            problem = _nvml_problem(nvml, error, has_nvidia_hardware)
            if problem:
                discovery.problems.append(problem)
                discovery.cuda_unavailable = problem
                log.warning("%s", problem)
            return discovery
        for problem in problems:
            log.warning("%s", problem)
        discovery.problems += problems
        if problems and not cards:
            discovery.cuda_unavailable = problems[0]
        return discovery

    def host(self) -> HostInfo:
        memory, (torch_version, torch_cuda) = host_memory(), installed_torch()
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
            torch_version=torch_version or "",
            torch_cuda_version=torch_cuda or "",
        )

    @property
    def has_cards(self) -> bool:
        return bool(self._cuda)

    def cuda_devices(self) -> list[DeviceInfo]:
        """Sampled now. Sets ``cuda_unavailable`` while no card answers."""
        lost: list[str] = []
        devices = [self._now(card, index, lost) for index, card in enumerate(self._cuda)]
        if self._cuda:
            self.cuda_unavailable = lost[0] if len(lost) == len(devices) else ""
        return devices

    def _now(self, card: CudaCard, index: int, lost: list[str]) -> DeviceInfo:
        try:
            return card_now(self._nvml, card, index)
        except self._nvml.NVMLError as error:
            problem = f"{card.info.name} (device {index}) no longer answers: {error}"
            lost.append(problem)
            if problem not in self.problems:
                self.problems.append(problem)
                log.error("%s", problem)
            # Nothing may be placed on a device that does not answer.
            return msgspec.structs.replace(card.info, index=index, free_memory_bytes=0)


def cpu_device() -> DeviceInfo:
    memory = host_memory()
    return DeviceInfo(
        index=0,
        kind="cpu",
        name=_cpu_name(),
        total_memory_bytes=memory.total_bytes,
        free_memory_bytes=memory.free_bytes,
    )


def _nvml_problem(nvml: Any, error: Exception, has_nvidia_hardware: bool) -> str | None:
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


def held_bytes(pid: int) -> int:
    """Bytes of an engine and of its child processes (ranks, stages) that no file backs; 0 once it
    has ended. On a CPU they are fewer than promised: KV gets its pages as blocks come into use."""
    return sum(map(_own_bytes, (pid, *_children_of(pid))))


def _own_bytes(pid: int) -> int:
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss) - int(getattr(memory, "shared", 0))


def _children_of(pid: int) -> list[int]:
    """Children of the process's main thread, which starts them all."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class HostCheck(msgspec.Struct, frozen=True, kw_only=True):
    cards: list[str]
    problems: list[str]
    driver: str | None = None
    driver_cuda: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    triton_problem: str | None = None


def host_check() -> HostCheck:
    discovery = Discovery.run()
    cards = discovery.cuda_devices()
    problems = list(discovery.problems)
    torch, torch_cuda = installed_torch()
    if cards and torch and (problem := torch_problem()):
        problems.append(problem.message)
    return HostCheck(
        cards=[card.name for card in cards],
        problems=problems,
        driver=cards[0].driver if cards else None,
        driver_cuda=driver_cuda(pynvml) if cards else None,
        torch=torch,
        torch_cuda=torch_cuda,
        triton_problem=triton_problem() if cards and torch else None,
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(host_check()) + b"\n")
