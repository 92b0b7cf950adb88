"""Hooks of schemathesis for the gateway's endpoints, which it reads in a process of its own.

Generated bodies name models that are not offered, and hold so many fields that some is refused. A
part of them becomes a plain request with one or two of the generated fields, and every answer stays
short. ``SCHEMATHESIS_STATUSES`` is a file for each answer's path and status.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import schemathesis

MODEL = "hermes"
MAX_TOKENS = 8
MAX_CHOICES = 2
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
TEXT = "Greet whoever reads this document."
TURNS: Any = [{"role": "user", "content": TEXT}]
PLAIN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": MAX_TOKENS},
    "/v1/completions": {"prompt": TEXT, "max_tokens": MAX_TOKENS},
    "/v1/messages": {"messages": TURNS, "max_tokens": MAX_TOKENS},
    "/v1/messages/count_tokens": {"messages": TURNS},
    "/v1/responses": {"input": TEXT, "max_output_tokens": MAX_TOKENS},
    "/v1/responses/input_tokens": {"input": TEXT},
    "/api/chat": {"messages": TURNS, "options": {"num_predict": MAX_TOKENS}},
    "/api/generate": {"prompt": TEXT, "options": {"num_predict": MAX_TOKENS}},
    "/api/show": {},
    "/tokenize": {"prompt": TEXT},
    "/detokenize": {"tokens": [65]},
}
"""A right body of each endpoint that a model of text answers, beside ``model``."""


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    plain = PLAIN.get(context.operation.path)
    turn = len(repr(body)) % 3
    if plain is not None and turn:
        others = [name for name in body if name not in plain and name != "model"]
        body = {"model": MODEL, **plain, **{name: body[name] for name in others[:turn]}}
    return _short(body)


def _short(body: dict[str, Any]) -> dict[str, Any]:
    for name, most in (*((name, MAX_TOKENS) for name in LENGTHS), ("n", MAX_CHOICES)):
        if isinstance(body.get(name), int) and body[name] > most:
            body[name] = most
    return body


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    if statuses := os.environ.get("SCHEMATHESIS_STATUSES"):
        with Path(statuses).open("a") as file:
            file.write(f"{case.operation.path} {response.status_code}\n")
