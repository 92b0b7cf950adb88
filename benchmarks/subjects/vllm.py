"""vLLM on the same weights, dequantised: its CPU build, or on a card. Runs in vLLM's interpreter.

That interpreter has vLLM's packages and not ours, so this module imports none of ours. See
``benchmarks.vllm_interpreter``.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.workload import (
    CARD_KV_BYTES,
    DECODE_OUTPUT_TOKENS,
    PREFIX_TOKENS,
    tokens_per_s_together,
)

LIBRARIES = ("vllm",)


class VllmEngine:
    """vLLM's own defaults: compiled by inductor, prefix cache on. ``where``: the device in words;
    ``arguments``: vLLM's own, beside these."""

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
        """Steps until all is done; for each request the clock at each of its tokens."""
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
