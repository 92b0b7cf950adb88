"""One question to one model, and whether its answer holds the one word that it was asked for."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleet.management.backend import NO_ANSWER, refusal_of
from inference import proxies

QUESTION = "Reply with exactly one word: pineapple"
WORD = "pineapple"
MAX_TOKENS = 512
NO_PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""A model's own penalties keep it from the words of the question, and the answer is one of them."""
REQUEST_TIMEOUT_S = 600.0
BUSY_STATUSES = (429, 503)
BUSY_RETRY_S = 5.0
MAX_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    question: str = QUESTION
    word: str = WORD
    max_tokens: int = MAX_TOKENS
    busy_limit_s: float = 360.0
    """How long a model that refuses for being busy is asked again."""


class RefusedError(Exception):
    """The server refused a question, or did not answer."""

    def __init__(self, status: int, reason: str, retry_after_s: float = BUSY_RETRY_S) -> None:
        super().__init__(reason)
        self.status = status
        self.retry_after_s = retry_after_s


Post = Callable[[str, dict[str, Any]], Any]
"""Path and body to JSON. Raises ``RefusedError``."""


def problem_of(
    model: str,
    probe: Probe,
    post: Post,
    *,
    is_embedding: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> str | None:
    """Why the model is not green; ``None``: it is."""
    deadline_s = clock() + probe.busy_limit_s
    while True:
        try:
            return _embedding_problem(model, post) if is_embedding else _asked(model, probe, post)
        except RefusedError as refusal:
            if refusal.status not in BUSY_STATUSES or clock() + refusal.retry_after_s > deadline_s:
                return f"it was refused ({refusal.status or 'no answer'}): {refusal}"
            sleep(refusal.retry_after_s)


def _asked(model: str, probe: Probe, post: Post) -> str | None:
    body = {
        "model": model,
        "temperature": 0,
        **NO_PENALTIES,
        "max_tokens": probe.max_tokens,
        "messages": [{"role": "user", "content": probe.question}],
    }
    answer = post("/v1/chat/completions", body)
    try:
        choice = answer["choices"][0]
        text = str(choice["message"].get("content") or "")
    except (KeyError, IndexError, TypeError):
        return f"its answer is none: {str(answer)[:MAX_REASON]}"
    if probe.word.lower() in text.lower():
        return None
    problem = f"its answer lacks {probe.word!r}: {text[:MAX_REASON]!r}"
    return problem + (" (cut off)" if choice.get("finish_reason") == "length" else "")


def _embedding_problem(model: str, post: Post) -> str | None:
    answer = post("/v1/embeddings", {"model": model, "input": WORD})
    try:
        numbers = [float(number) for number in answer["data"][0]["embedding"]]
    except (KeyError, IndexError, TypeError, ValueError):
        return f"its answer is no vector: {str(answer)[:MAX_REASON]}"
    if not numbers or not all(map(math.isfinite, numbers)) or not any(numbers):
        return "its vector has nothing in it"
    return None


class Server:
    """A gateway over HTTP. Raises ``RefusedError``, and ``ValueError`` for a body that is not
    JSON."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask(path, json.dumps(body).encode())

    def get(self, path: str) -> Any:
        return self._ask(path, None)

    def _ask(self, path: str, data: bytes | None) -> Any:
        request = urllib.request.Request(self._url + path, data=data, headers=self._headers)
        try:
            with proxies.open_url(request, timeout=REQUEST_TIMEOUT_S) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            reason = refusal_of(error)[:MAX_REASON]
            raise RefusedError(error.code, reason, _seconds(error.headers)) from error
        except NO_ANSWER as error:
            raise RefusedError(0, f"{self._url} does not answer: {error}") from error
        return json.loads(content)


def _seconds(headers: Any) -> float:
    word = headers.get("retry-after", "")
    return float(word) if word.isdigit() else BUSY_RETRY_S
