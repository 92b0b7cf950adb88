"""Can engines use the cards that the driver shows? Asked of a process of its own, once: a neuron
imports no torch."""

from __future__ import annotations

import os
import subprocess
import sys

from inference.environment import Role, environment_for

PROBE = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
TIMEOUT_S = 120.0


def torch_problem(command: tuple[str, ...] = (sys.executable, "-c", PROBE)) -> str | None:
    """Why engines cannot use the cards, for operators; ``None``: they can, or the probe itself
    failed."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment_for(Role.OTHER, os.environ),
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 or done.stdout.strip() != b"0":
        return None
    return (
        "PyTorch cannot use the NVIDIA devices of this host (a build without CUDA, or one that is "
        "too new for the driver): models run on the CPU"
    )
