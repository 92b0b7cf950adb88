"""``python -m inference.neuron.host.host_check``: what a neuron would find on this host, as JSON.

The doctor runs it as a process of its own, so that a hanging driver blocks only that process.
"""

from __future__ import annotations

import sys

import msgspec
import pynvml

from inference.loading.host import triton_problem
from inference.neuron.host.cuda_cards import driver_cuda
from inference.neuron.host.device_sampler import torch_problem
from inference.neuron.host.discovery import Discovery, installed_torch


class HostCheck(msgspec.Struct, frozen=True, kw_only=True):
    cards: list[str]
    problems: list[str]
    driver: str | None = None
    driver_cuda: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    """The CUDA that this torch is built for; ``None``: a build for CPUs."""
    triton_problem: str | None = None


def host_check() -> HostCheck:
    discovery = Discovery.run()
    cards = [device for device in discovery.devices() if device.kind == "cuda"]
    problems = list(discovery.problems)
    torch = installed_torch()
    if cards and torch.version and (problem := torch_problem()):
        problems.append(problem.message)
    return HostCheck(
        cards=[card.name for card in cards],
        problems=problems,
        driver=cards[0].driver if cards else None,
        driver_cuda=driver_cuda(pynvml) if cards else None,
        torch=torch.version,
        torch_cuda=torch.cuda,
        triton_problem=triton_problem() if cards and torch.version else None,
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(host_check()) + b"\n")
