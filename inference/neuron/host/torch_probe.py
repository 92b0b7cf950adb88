"""Can engines use the cards that the driver shows? Asked of a process of its own, once: a neuron
imports no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

from inference.environment import Role, environment_for

PROBE = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class TorchProblem:
    """Why engines cannot use the cards, for operators."""

    message: str
    is_answered: bool
    """``False``: the probe was over its limit, so the next one may find that they can."""


def torch_problem(
    command: tuple[str, ...] = (sys.executable, "-c", PROBE), *, timeout_s: float = TIMEOUT_S
) -> TorchProblem | None:
    """``None``: engines can use the cards, or the probe itself failed."""
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
