"""Which build of torch a host gets, printed with its size before anything is fetched.

    an NVIDIA driver                  PyPI's, with CUDA: gigabytes
    none, and torch's CPU index       its build for CPUs, a twentieth of that
      answers
    none, and it does not answer      what the package index at hand has

Standard library only.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from helexa_site.bootstrap.installing.requirements import Requirement
from inference.loading.sources.deadline import DeadlineError, within
from inference.settings.installation import TORCH_CPU_INDEX

ANSWER_TIMEOUT_S = 5.0
"""The time limit of each read."""
ANSWER_LIMIT_S = 15.0
DRIVER_SIGNS = (
    "/proc/driver/nvidia/version",
    "/dev/nvidiactl",
    "/dev/dxg",  # WSL passes the host's driver through this
)
CPU_SIZE = "about 200 MB"
CUDA_SIZE = "about 3.5 GB"


@dataclass(frozen=True, slots=True)
class TorchBuild:
    index: str | None
    """The index that torch alone is taken from, before the rest; ``None``: pip's own."""
    words: str
    """The line printed for the operator."""
    has_cuda: bool = False
    """Wanted so, because there is a driver."""


def choose_torch(
    unmet: Sequence[Requirement],
    *,
    platform: str,
    has_driver: bool,
    index: str | None,
    answers: Callable[[str], bool],
) -> TorchBuild | None:
    """``None``: torch is not to be installed, or there is nothing to choose. Pure but for
    ``answers``."""
    if platform != "linux" or not any(wanted.name == "torch" for wanted in unmet):
        return None
    if has_driver:
        return TorchBuild(
            None,
            f"there is an NVIDIA driver: torch with CUDA, {CUDA_SIZE} with its libraries",
            has_cuda=True,
        )
    if index is not None and answers(f"{index}/torch/"):
        return TorchBuild(index, f"no NVIDIA driver: torch for CPUs, {CPU_SIZE}, from {index}")
    why = "is turned off" if index is None else f"{index} does not answer"
    return TorchBuild(
        None,
        f"no NVIDIA driver, but torch's index of CPU builds ({TORCH_CPU_INDEX.name}) {why}: what "
        f"pip finds, and from PyPI that is {CUDA_SIZE} of CUDA. Ctrl-C stops it",
    )


def torch_here(unmet: Sequence[Requirement]) -> TorchBuild | None:
    return choose_torch(
        unmet,
        platform=sys.platform,
        has_driver=any(Path(sign).exists() for sign in DRIVER_SIGNS),
        index=TORCH_CPU_INDEX.read(os.environ),
        answers=index_answers,
    )


def index_answers(url: str) -> bool:
    try:
        return within(ANSWER_LIMIT_S, lambda: _is_there(url))
    except (DeadlineError, OSError, ValueError):
        return False


def _is_there(url: str) -> bool:
    request = urllib.request.Request(url, method="HEAD")
    with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:
        return bool(response.status == 200)
