"""A whole server whose Redis stands still: answers pause and lose nothing. What ends where it
stands still for too long is tried in ``tests/inference/gateway/redis/test_outages.py``.

The one fault injected is Redis' own: its process is stopped under four open answers.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.serving import (
    WAIT_TIMEOUT_S,
    chat_body,
    chat_text,
    events_of,
    wait_until,
)

STALL_S = 2.5
TOKEN_S = 0.04
TEXT = "".join(f"{number} " for number in range(80))
"""Some 230 tokens: an answer takes long enough for something to happen meanwhile."""


def asked(text: str) -> dict[str, Any]:
    return {"model": "hermes", "messages": [{"role": "user", "content": text}]}


class Answer:
    """One request in a thread of its own, its body as it came."""

    def __init__(self, serve: ScriptedServe, text: str, *, stream: bool) -> None:
        self._url = f"{serve.url}/v1/chat/completions"
        self._body = chat_body(**asked(text), stream=stream, max_tokens=100_000)
        self._stream = stream
        self.status = 0
        self.received = b""
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=WAIT_TIMEOUT_S) as response:
            self.status = response.status_code
            for data in response.iter_bytes():
                self.received += data

    def wait(self) -> None:
        self._thread.join(WAIT_TIMEOUT_S)
        assert not self._thread.is_alive(), f"it hangs after {self.received!r}"

    @property
    def has_begun(self) -> bool:
        return self.received.count(b"data: ") > 3

    @property
    def text(self) -> str:
        if not self._stream:
            return str(json.loads(self.received)["choices"][0]["message"]["content"])
        return chat_text(events_of(self.received.decode()))


def has_begun(model: ScriptedModel, when: str, num_answers: int) -> bool:
    return len(model.moments_s("first token", when)) == num_answers


def runs_nothing(serve: ScriptedServe) -> bool:
    """While Redis stands still the replica's heartbeat may lapse."""
    replica = serve.replica("hermes")
    return replica is not None and replica["in_flight"] == 0


def test_a_stall_pauses_answers_and_submits_and_loses_nothing(
    scripted_server: ScriptedServe, hermes: ScriptedModel
) -> None:
    serve = scripted_server
    wait_until(serve.is_healthy, "nothing is wrong beforehand")
    hermes.answers("count for me", TEXT, token_s=TOKEN_S)
    open_answers = [
        Answer(serve, "count for me", stream=stream) for stream in (True, False, True, False)
    ]
    wait_until(lambda: has_begun(hermes, "count for me", 4), "all are being answered")
    wait_until(lambda: open_answers[0].has_begun, "text comes")
    on_their_way = [Answer(serve, "count for me", stream=stream) for stream in (True, False)]
    redis = serve.find("redis")
    redis.suspend()
    try:
        time.sleep(STALL_S)
    finally:
        redis.resume()
    for answer in (*open_answers, *on_their_way):
        answer.wait()
        assert (answer.status, answer.text) == (200, TEXT)
    assert len(hermes.received("count for me")) == 6, "each ran once"
    wait_until(lambda: runs_nothing(serve), "nothing is left of them")
    wait_until(serve.is_healthy, "nothing is wrong afterwards")
