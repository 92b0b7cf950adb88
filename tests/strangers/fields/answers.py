"""Asks a server over HTTP, streamed or not, reads what every dialect's answer has in common, and
checks what it must be by its request alone: no model is asked for a second opinion.

Counts, stops, choices and schemas hold exactly. Penalties are computed by hand from the returned
log probabilities, as vLLM defines them: of the tokens that the answer had so far, the frequency
penalty times their number and the presence penalty once are taken off; the greedy token is the best
then.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import jsonschema

from tests.strangers.fields.field_values import IN_OPTIONS, MAX_TOKENS_FIELD, as_asked

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


GRAMMARS = frozenset(
    {
        *("guided_choice", "guided_regex", "guided_json", "guided_grammar"),
        *("structured_outputs", "response_format"),
    }
)
"""An answer that is complete by its grammar ends, before ``min_tokens`` too."""
TOLERANCE = 2e-3
"""The tolerance of log probabilities: they are returned in five digits or so."""


def check(path: str, body: dict[str, Any], answer: Answer) -> None:
    assert answer.status == 200, (body, answer.error)
    body = as_asked(path, body)
    assert sorted(answer.choices) == list(range(body.get("n") or 1))
    _check_counts(path, body, answer)
    for choice in answer.choices.values():
        assert choice.reason, body
        _check_stops(body, choice)
        _check_form(body, choice)
        _check_logprobs(body, choice)


def _check_counts(path: str, body: dict[str, Any], answer: Answer) -> None:
    is_ollama = MAX_TOKENS_FIELD[path].startswith(IN_OPTIONS)
    limit = "max_tokens" if is_ollama else MAX_TOKENS_FIELD[path]
    most = body.get("max_completion_tokens") or body[limit]
    num_choices = len(answer.choices)
    assert answer.prompt_tokens > 0
    assert answer.completion_tokens <= most * num_choices
    if body.get("min_tokens") and not body.keys() & GRAMMARS:
        assert answer.completion_tokens >= body["min_tokens"] * num_choices, body
    if body.get("ignore_eos"):
        assert answer.completion_tokens == most * num_choices
        assert {choice.reason for choice in answer.choices.values()} == {"length"}
    if body.get("return_token_ids"):
        assert sum(len(c.token_ids) for c in answer.choices.values()) == answer.completion_tokens


def _check_stops(body: dict[str, Any], choice: Choice) -> None:
    stops = body.get("stop") or body.get("stop_sequences") or []
    for stop in [stops] if isinstance(stops, str) else stops:
        assert stop not in choice.text, (stop, choice.text)


def _check_form(body: dict[str, Any], choice: Choice) -> None:
    """An answer that its length or a stop cut off need not be whole."""
    if choice.reason == "length" or body.keys() & {"stop", "stop_token_ids"}:
        return
    outputs = body.get("structured_outputs") or {}
    if choices := body.get("guided_choice") or outputs.get("choice"):
        assert choice.text in choices
    if regex := body.get("guided_regex") or outputs.get("regex"):
        assert re.fullmatch(regex, choice.text)
    if "guided_grammar" in body:
        assert re.fullmatch("ab+c", choice.text)
    schema = body.get("guided_json") or outputs.get("json")
    asked = body.get("response_format") or {}
    if asked.get("type") == "json_schema":
        schema = asked["json_schema"]["schema"]
    if asked_format := body.get("format"):
        schema = {"type": "object"} if asked_format == "json" else asked_format
    if schema is not None:
        jsonschema.validate(json.loads(choice.text), schema)


def _check_logprobs(body: dict[str, Any], choice: Choice) -> None:
    if body.get("logprobs") is not True:
        return
    for one in choice.logprobs:
        top = one["top_logprobs"]
        assert len(top) == body.get("top_logprobs", 0)
        assert -1e4 <= one["logprob"] <= TOLERANCE
        values = [other["logprob"] for other in top]
        assert values == sorted(values, reverse=True)
        assert sum(math.exp(value) for value in values) <= 1 + TOLERANCE
    _check_penalties(body, choice)


def _check_penalties(body: dict[str, Any], choice: Choice) -> None:
    """Checks a greedy answer: no token that was offered beside the chosen one is better than it."""
    if body["temperature"] != 0 or body.get("top_logprobs") != 20 or "logit_bias" in body:
        return
    frequency = body.get("frequency_penalty", 0)
    presence = body.get("presence_penalty", 0)
    if body.get("repetition_penalty", 1) != 1:
        return
    counts: Counter[tuple[int, ...]] = Counter()
    for number, one in enumerate(choice.logprobs):

        def penalised(offered: dict[str, Any]) -> float:
            count = counts[tuple(offered["bytes"])]
            return float(offered["logprob"]) - frequency * count - presence * (count > 0)

        best = max(map(penalised, one["top_logprobs"]))
        assert penalised(one) >= best - TOLERANCE, (number, one["token"])
        counts[tuple(one["bytes"])] += 1
