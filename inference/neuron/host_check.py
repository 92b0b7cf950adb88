"""``python -m inference.neuron.host_check``: what a neuron would find on this host, as JSON.

The doctor asks it in a process of its own: a driver that hangs holds up nobody else.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import Any

import msgspec
import pynvml

from inference.neuron.discovery import Discovery
from inference.neuron.torch_probe import torch_problem

BUILT_FOR = re.compile(r"^cuda\b[^=]*= *'(?P<version>[\d.]+)'", re.MULTILINE)


class HostCheck(msgspec.Struct, frozen=True, kw_only=True):
    cards: list[str]
    problems: list[str]
    driver: str | None = None
    driver_cuda: str | None = None
    """The newest CUDA that the driver runs."""
    torch: str | None = None
    torch_cuda: str | None = None
    """The CUDA that this torch is built for; ``None``: a build for CPUs."""


def host_check() -> HostCheck:
    discovery = Discovery.run()
    cards = [device for device in discovery.devices() if device.kind == "cuda"]
    problems = list(discovery.problems)
    version, built_for = _torch()
    if cards and version and (problem := torch_problem()):
        problems.append(problem)
    return HostCheck(
        cards=[card.name for card in cards],
        problems=problems,
        driver=cards[0].driver if cards else None,
        driver_cuda=_driver_cuda() if cards else None,
        torch=version,
        torch_cuda=built_for,
    )


def _driver_cuda() -> str | None:
    try:
        number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def _torch() -> tuple[str | None, str | None]:
    """Version and CUDA of the torch that is installed, without importing it."""
    try:
        found: Any = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None, None
    built = BUILT_FOR.search(found.locate_file("torch/version.py").read_text())
    return found.version, built["version"] if built else None


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(host_check()) + b"\n")
