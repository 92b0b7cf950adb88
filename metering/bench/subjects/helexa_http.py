"""helexa as a client sees it: concurrent streams through the HTTP API of a running server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import httpx

from metering.bench.workload import DECODE_OUTPUT_TOKENS, DECODE_PROMPT_TOKENS, PromptMaker

LIBRARIES = None
REQUEST_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Clock readings in seconds."""

    sent: float
    first_token: float
    last_token: float


class HelexaHttp:
    """``/v1/completions`` with token-id prompts, greedy, end-of-sequence ignored, streaming."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model

    def describe(self) -> str:
        return f"helexa over HTTP ({self._model})"

    def decode(self, concurrency: int, seed: int) -> float:
        """Tokens after every stream's first, over the time from the last first token to the end.

        A stream that got ahead while others were still in their prompt is counted for what it
        sends in that window only by its share of it, which the equal lengths make equal.
        """
        prompts = PromptMaker(seed)
        batch = [prompts.prompt(DECODE_PROMPT_TOKENS) for _ in range(concurrency)]
        times = asyncio.run(self._streams(batch, 1 + DECODE_OUTPUT_TOKENS))
        started = min(t.first_token for t in times)
        ended = max(t.last_token for t in times)
        return concurrency * DECODE_OUTPUT_TOKENS / (ended - started)

    def prefill(self, num_tokens: int, seed: int) -> float:
        times = asyncio.run(self._streams([PromptMaker(seed).prompt(num_tokens)], 1))
        return num_tokens / (times[0].first_token - times[0].sent)

    def time_to_first_token(self, num_tokens: int, seed: int) -> tuple[float, float]:
        cold_s = num_tokens / self.prefill(num_tokens, seed)
        return cold_s, num_tokens / self.prefill(num_tokens, seed)

    def close(self) -> None:
        pass

    async def _streams(self, prompts: list[list[int]], max_tokens: int) -> list[StreamTimes]:
        limits = httpx.Limits(max_connections=len(prompts))
        async with httpx.AsyncClient(limits=limits, timeout=REQUEST_TIMEOUT_S) as client:
            return await asyncio.gather(*(self._stream(client, p, max_tokens) for p in prompts))

    async def _stream(
        self, client: httpx.AsyncClient, prompt: list[int], max_tokens: int
    ) -> StreamTimes:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent = time.perf_counter()
        first = last = 0.0
        num_tokens = 0
        async with client.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise RuntimeError(chunk["error"]["message"])
                if chunk.get("usage"):
                    num_tokens = chunk["usage"]["completion_tokens"]
                elif chunk["choices"]:
                    last = time.perf_counter()
                    first = first or last
        if num_tokens != max_tokens:
            raise RuntimeError(f"asked for {max_tokens} tokens and got {num_tokens}")
        return StreamTimes(sent, first, last)


def open_subject(url: str, model: str) -> HelexaHttp:
    return HelexaHttp(url, model)
