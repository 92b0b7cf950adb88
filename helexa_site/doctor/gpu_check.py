"""The GPUs: the driver in the kernel against its library and against torch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from helexa_site.doctor.findings import Finding, failed, ok, warning
from helexa_site.program import REPOSITORY_DIR, Installation, installation, program
from inference.environment import Role, environment_for

CHECK = "gpu"
COMMAND = (sys.executable, "-m", "inference.neuron.host.host_check")
TIMEOUT_S = 180.0
"""It imports torch where there are cards; a driver that hangs never answers."""


def gpu_findings(command: tuple[str, ...] = COMMAND) -> Iterator[Finding]:
    if importlib.util.find_spec("pynvml") is None:
        yield ok(CHECK, "this environment is a gateway's: it runs no models")
        return
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY_DIR,
            env=environment_for(Role.OTHER, os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        facts = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        yield failed(CHECK, "the NVIDIA driver does not answer", "reboot this host")
    except (OSError, ValueError) as error:
        yield warning(CHECK, f"this host cannot be looked at: {error}", "see the lines above")
    else:
        yield from findings_of(facts)


def _bringing_torch() -> str:
    if installation() is Installation.WHEEL:
        return "install helexa's wheel with its extra: pip install 'helexa-….whl[neuron]'"
    return f"{program()} neuron"


def findings_of(facts: dict[str, Any]) -> Iterator[Finding]:
    """The findings from the output of ``inference.neuron.host.host_check``. Pure."""
    for problem in facts["problems"]:
        text, _, mend = problem.partition(": ")
        yield failed(CHECK, text, mend or "see the troubleshooting page")
    if problem := facts.get("triton_problem"):
        text, _, mend = problem.partition(": ")
        yield warning(CHECK, text, mend)
    if facts["torch"] is None:
        yield warning(
            CHECK, "torch is not installed: no model can be loaded here", _bringing_torch()
        )
    elif _is_older(facts["driver_cuda"], facts["torch_cuda"]):
        yield failed(
            CHECK,
            f"the driver {facts['driver']} runs CUDA {facts['driver_cuda']}, and torch "
            f"{facts['torch']} is built for {facts['torch_cuda']}",
            f"install a driver for CUDA {facts['torch_cuda']} or newer",
        )
    elif facts["cards"] and not facts["problems"]:
        yield ok(CHECK, f"{', '.join(facts['cards'])}: driver {facts['driver']} and torch agree")
    elif not facts["cards"] and not facts["problems"]:
        yield ok(CHECK, "no NVIDIA GPU: models run on the CPU")


def _is_older(driver_cuda: str | None, torch_cuda: str | None) -> bool:
    """A driver runs code built for its own major version of CUDA and for older ones."""
    if driver_cuda is None or torch_cuda is None:
        return False
    return int(driver_cuda.partition(".")[0]) < int(torch_cuda.partition(".")[0])
