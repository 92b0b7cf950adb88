"""helexa's engine in this process: no HTTP, no Redis, no text."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import cast

import torch

from benchmarks.subjects import CARD_KV_BYTES, DECODE_OUTPUT_TOKENS
from inference.engine.engine import Engine
from inference.engine.load.load_engine import configure_threads, load_engine
from inference.protocol.engine import SamplingParams, SequenceStep, SubmitSequence, TokenLogprob
from inference.protocol.load import LoadSpec, Quantization

LIBRARIES = ()
"""All of them are imported above."""


class HelexaEngine:
    keeps_prefixes = True

    def __init__(self, spec: LoadSpec, num_threads: int, data_dir: Path) -> None:
        os.environ["HELEXA_ENGINE_THREADS"] = str(num_threads)
        configure_threads()
        self._loaded = load_engine(spec, data_dir, lambda progress: None)
        assert isinstance(self._loaded.engine, Engine), "the workload is for a model of text"
        self._engine = self._loaded.engine
        self._num_submitted = 0
        (device,) = spec.devices or ["cpu"]
        self._device = torch.cuda.get_device_name(device) if device != "cpu" else device

    def describe(self) -> str:
        report = self._loaded.report
        return f"helexa engine on {self._device}, {report.compiled}; {report.quantization}"

    def decode(self, prompts: list[list[int]]) -> float:
        """The clock starts when every sequence has its first token."""
        for prompt in prompts:
            self._submit(prompt, _greedy(2 * DECODE_OUTPUT_TOKENS))
        waiting = len(prompts)
        while waiting:
            waiting -= sum(output.num_cached_tokens is not None for output in self._step())
        started = time.perf_counter()
        num_tokens = 0
        for _ in range(DECODE_OUTPUT_TOKENS):
            num_tokens += sum(len(output.token_ids) for output in self._step())
        elapsed_s = time.perf_counter() - started
        self._engine.cancel_all()
        return num_tokens / elapsed_s

    def first_token_s(self, prompt: list[int]) -> float:
        started = time.perf_counter()
        self._submit(prompt, _greedy(1))
        while self._engine.has_work:
            self._step()
        return time.perf_counter() - started

    def log_probabilities(self, token_ids: list[int]) -> list[float]:
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        self._submit(token_ids, params)
        found: list[TokenLogprob] = []
        while self._engine.has_work:
            for output in self._step():
                found += output.prompt_logprobs or []
        return [token.logprob for token in found if token.logprob is not None]

    def close(self) -> None:
        self._engine.cancel_all()

    def _submit(self, prompt: list[int], params: SamplingParams) -> None:
        self._num_submitted += 1
        sequence_id = str(self._num_submitted)
        self._engine.submit(
            SubmitSequence(sequence_id=sequence_id, token_ids=prompt, params=params)
        )

    def _step(self) -> list[SequenceStep]:
        outputs = self._engine.step().outputs
        steps = [output for output in outputs if isinstance(output, SequenceStep)]
        if len(steps) != len(outputs):
            raise RuntimeError(f"the engine refused: {outputs}")
        return steps


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def open_subject(
    gguf: str, num_threads: str, data_dir: str, device: str = "cpu", quantization: str = "auto"
) -> HelexaEngine:
    """``gguf``: the file, or a folder of dense weights, which are quantised while they load."""
    spec = LoadSpec(
        job_id="bench",
        model="bench",
        source=f"path:{gguf}",
        devices=[device],
        quantization=cast(Quantization, quantization),
        kv_memory_bytes=None if device == "cpu" else CARD_KV_BYTES,
    )
    return HelexaEngine(spec, int(num_threads), Path(data_dir))
