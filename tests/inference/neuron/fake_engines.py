"""The fake engine's processes that a test has running."""

from __future__ import annotations

import psutil

FAKE_ENGINE = "fake_engine.py"


def running_engines(neuron_pid: int | None = None) -> list[psutil.Process]:
    """Of a neuron, else of this process."""
    children = psutil.Process(neuron_pid).children(recursive=True)
    return [child for child in children if FAKE_ENGINE in _command(child)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # since it was listed
        return ""
