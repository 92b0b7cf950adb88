"""One question in either dialect, streamed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from metering.bench.client.http import Http
from metering.bench.errors import SampleFailedError
from metering.bench.sweeps.answers import Answer, AnthropicFold, OpenAiFold
from metering.bench.sweeps.cases import SchemaCase, Tool

ANTHROPIC_VERSION = "2023-06-01"
TIMING_HEADER = {"x-helexa-timing": "true"}
"""Asks helexa's gateway for its engine's own times; servers that do not know it skip it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Temperature is 0: the same answer each time, as far as a server can."""

    model: str
    prompt: str
    max_tokens: int
    tools: Sequence[Tool] = ()
    schema: SchemaCase | None = None


class Asker(Protocol):
    def ask(self, ask: Ask) -> Answer:
        """Raises ``SampleFailedError``."""
        ...

    def embed(self, model: str, texts: list[str]) -> int | None:
        """The number of tokens, where the answer has it. Raises ``SampleFailedError``."""
        ...


class OpenAiAsker:
    def __init__(self, http: Http, base_url: str) -> None:
        self._http = http
        self._base_url = v1_url(base_url)

    def ask(self, ask: Ask) -> Answer:
        body = _streamed_body(ask) | {"stream_options": {"include_usage": True}}
        if ask.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in ask.tools
            ]
        if ask.schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {
                    "name": ask.schema.name,
                    "strict": True,
                    "schema": ask.schema.schema,
                },
            }
        fold = OpenAiFold()
        return _streamed(self._http, f"{self._base_url}/chat/completions", body, fold)

    def embed(self, model: str, texts: list[str]) -> int | None:
        body = {"model": model, "input": texts}
        answer = self._http.post(f"{self._base_url}/embeddings", body)
        vectors = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(vectors, list) or len(vectors) != len(texts):
            raise SampleFailedError(f"{len(texts)} texts have other than as many vectors")
        tokens = (answer.get("usage") or {}).get("prompt_tokens")
        return tokens if type(tokens) is int else None


class AnthropicAsker:
    def __init__(self, http: Http, base_url: str) -> None:
        self._http = http
        self._base_url = v1_url(base_url)

    def ask(self, ask: Ask) -> Answer:
        body = _streamed_body(ask)
        if ask.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": tool.parameters,
                }
                for tool in ask.tools
            ]
        if ask.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": ask.schema.schema}}
        return _streamed(self._http, f"{self._base_url}/messages", body, AnthropicFold())

    def embed(self, model: str, texts: list[str]) -> int | None:
        raise SampleFailedError("Anthropic's API has no embeddings")


def _streamed_body(ask: Ask) -> dict[str, Any]:
    return {
        "model": ask.model,
        "messages": [{"role": "user", "content": ask.prompt}],
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": True,
    }


def _streamed(http: Http, url: str, body: Any, fold: OpenAiFold | AnthropicFold) -> Answer:
    started_s = time.perf_counter()
    for event, at_s in http.stream(url, body):
        fold.feed(event, at_s)
    answer = fold.end(time.perf_counter() - started_s)
    if answer.num_pieces == 0:
        raise SampleFailedError("the answer is empty")
    return answer


def v1_url(base_url: str) -> str:
    base = base_url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def key_headers(kind: str, key: str | None) -> Mapping[str, str]:
    if kind == "anthropic":
        version = {"anthropic-version": ANTHROPIC_VERSION}
        return version if key is None else {**version, "x-api-key": key}
    return TIMING_HEADER if key is None else {**TIMING_HEADER, "authorization": f"Bearer {key}"}
