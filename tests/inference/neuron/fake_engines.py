"""The fake engine's processes that a test has running."""

from __future__ import annotations

import psutil

from tests.processes import command_line

FAKE_ENGINE = "fake_engine.py"


def running_engines(neuron_pid: int | None = None) -> list[psutil.Process]:
    """Returns the running engines of a neuron, else of this process."""
    children = psutil.Process(neuron_pid).children(recursive=True)
    return [child for child in children if FAKE_ENGINE in " ".join(command_line(child))]
