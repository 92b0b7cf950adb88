"""Versions that a host reports: the driver's CUDA and the installed torch. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

BUILT_FOR = re.compile(r"^cuda\b[^=]*= *'(?P<version>[\d.]+)'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class InstalledTorch:
    version: str | None = None
    """``None``: there is none."""
    cuda: str | None = None
    """The CUDA that it is built for; ``None``: a build for CPUs."""


@cache
def installed_torch() -> InstalledTorch:
    try:
        found: Any = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return InstalledTorch()
    built = BUILT_FOR.search(found.locate_file("torch/version.py").read_text())
    return InstalledTorch(found.version, built["version"] if built else None)


def driver_cuda(nvml: Any) -> str | None:
    """The newest CUDA that the driver runs; ``None``: it does not report it."""
    try:
        number = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"
