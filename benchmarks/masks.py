"""What a grammar costs a decode step, measured in a process of its own: this one has no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from helexa_site.config import REPOSITORY_DIR


def mask_costs(gguf: str, num_threads: int, data_dir: Path) -> list[dict[str, float]]:
    """Each has ``temperature``, ``free_ms``, ``masked_ms`` and ``share``, as
    ``benchmarks.engine.mask`` has them."""
    command = [sys.executable, "-m", "benchmarks.engine.mask", gguf, "--json"]
    measured = subprocess.run(
        [*command, "--data-dir", str(data_dir)],
        env=os.environ | {"HELEXA_ENGINE_THREADS": str(num_threads)},
        cwd=REPOSITORY_DIR,
        stdout=subprocess.PIPE,
        check=True,
    )
    costs: list[dict[str, float]] = json.loads(measured.stdout)
    return costs


def as_line(cost: dict[str, float]) -> str:
    return (
        f"decode step of 8 sequences, temperature {cost['temperature']:g}: "
        f"{cost['free_ms']:.2f} ms, with a JSON schema {cost['masked_ms']:.2f} ms "
        f"({cost['share']:+.1%})"
    )
