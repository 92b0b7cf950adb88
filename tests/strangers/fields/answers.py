"""Asks a server over HTTP, streamed or not, and reads what every dialect's answer has in common."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT_S = 300.0


@dataclass(slots=True)
class Choice:
    text: str = ""
    reason: str | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """``status`` and ``error`` of a refusal; else its choices in their order."""

    status: int
    error: dict[str, Any] | None = None
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> Answer:
    response = client.post(path, json=body, timeout=TIMEOUT_S)
    if response.status_code != 200:
        return Answer(response.status_code, error=error_of(response.json()))
    answer = Answer(200)
    _READERS[path](answer, response.json())
    return answer


def error_of(body: dict[str, Any]) -> dict[str, Any]:
    """Ollama's errors are a text, with our code and field beside it."""
    error: dict[str, Any] | str = body["error"]
    return body | {"message": error} if isinstance(error, str) else error


def ask_streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> Answer:
    """Chat and text completions."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    answer = Answer(200)
    with client.stream("POST", path, json=body, timeout=TIMEOUT_S) as response:
        if response.status_code != 200:
            response.read()
            return Answer(response.status_code, error=response.json()["error"])
        for line in response.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                _add_chunk(answer, json.loads(line.removeprefix("data: ")))
    return answer


def _add_chunk(answer: Answer, chunk: dict[str, Any]) -> None:
    assert "error" not in chunk, chunk
    for part in chunk["choices"]:
        choice = answer.choices.setdefault(part["index"], Choice())
        choice.text += (part["delta"].get("content") or "") if "delta" in part else part["text"]
        choice.reason = part.get("finish_reason") or choice.reason
    if usage := chunk.get("usage"):
        _add_usage(answer, usage["prompt_tokens"], usage["completion_tokens"])


def _read_openai(answer: Answer, body: dict[str, Any]) -> None:
    for part in body["choices"]:
        text = part["message"]["content"] if "message" in part else part["text"]
        logprobs = part.get("logprobs") or {}
        answer.choices[part["index"]] = Choice(
            text=text or "",
            reason=part["finish_reason"],
            logprobs=logprobs.get("content") or [],
            token_ids=part.get("token_ids") or [],
        )
    _add_usage(answer, body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])


def _read_message(answer: Answer, body: dict[str, Any]) -> None:
    text = "".join(block["text"] for block in body["content"] if block["type"] == "text")
    answer.choices[0] = Choice(text=text, reason=body["stop_reason"])
    _add_usage(answer, body["usage"]["input_tokens"], body["usage"]["output_tokens"])


def _read_response(answer: Answer, body: dict[str, Any]) -> None:
    parts = [part for item in body["output"] for part in item.get("content", ())]
    text = "".join(part["text"] for part in parts if part["type"] == "output_text")
    answer.choices[0] = Choice(text=text, reason=body["status"])
    _add_usage(answer, body["usage"]["input_tokens"], body["usage"]["output_tokens"])


def _read_ollama(answer: Answer, body: dict[str, Any]) -> None:
    text = body["message"]["content"] if "message" in body else body["response"]
    logprobs = body.get("logprobs") or []
    answer.choices[0] = Choice(text=text, reason=body["done_reason"], logprobs=logprobs)
    _add_usage(answer, body["prompt_eval_count"], body["eval_count"])


def _add_usage(answer: Answer, prompt_tokens: int, completion_tokens: int) -> None:
    answer.prompt_tokens, answer.completion_tokens = prompt_tokens, completion_tokens


_READERS = {
    "/v1/chat/completions": _read_openai,
    "/v1/completions": _read_openai,
    "/v1/messages": _read_message,
    "/v1/responses": _read_response,
    "/api/chat": _read_ollama,
    "/api/generate": _read_ollama,
}
