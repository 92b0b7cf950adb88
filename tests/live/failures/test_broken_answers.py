"""An engine that dies under answers: each client gets one error, in its dialect."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.serving import WAIT_TIMEOUT_S, wait_until

ENDLESS = "never come to an end"
TURNS = [{"role": "user", "content": ENDLESS}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": TURNS, "n": 2}),
    "completions": ("/v1/completions", {"prompt": [ENDLESS], "max_tokens": 100_000}),
    "messages": ("/v1/messages", {"messages": TURNS, "max_tokens": 100_000}),
    "responses": ("/v1/responses", {"input": ENDLESS}),
}


class Asked:
    """A request in a thread of its own; ``response`` once it has ended."""

    def __init__(self, serve: ScriptedServe, dialect: str, *, stream: bool) -> None:
        path, fields = REQUESTS[dialect]
        self._url = serve.url + path
        self._body = fields | {"model": "opened-thinking", "stream": stream}
        self.response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        self.response = httpx.post(self._url, json=self._body, timeout=WAIT_TIMEOUT_S)

    def ended(self) -> httpx.Response:
        self._thread.join(WAIT_TIMEOUT_S)
        assert self.response is not None, "it never ended"
        return self.response


@pytest.fixture(scope="module")
def broken(scripted_server: ScriptedServe) -> dict[tuple[str, bool], httpx.Response]:
    """What each dialect answered, streamed (``True``) and whole, when one engine died under all."""
    model: ScriptedModel = scripted_server.models["opened-thinking"]
    model.answers(ENDLESS, "on and on", repeats=True)
    model.answers("die now", "", crashes=True)
    asked = {
        (dialect, stream): Asked(scripted_server, dialect, stream=stream)
        for dialect in REQUESTS
        for stream in (True, False)
    }

    def are_running() -> bool:
        replica = scripted_server.replica(model.name)
        return replica is not None and replica["in_flight"] >= len(asked) + 2

    wait_until(are_running, "all are being answered, two choices of chat each")
    httpx.post(
        f"{scripted_server.url}/v1/completions",
        json={"model": model.name, "prompt": "die now"},
        timeout=WAIT_TIMEOUT_S,
    )
    return {key: one.ended() for key, one in asked.items()}


@pytest.mark.parametrize("dialect", REQUESTS)
def test_whole_answers_are_refused(
    broken: dict[tuple[str, bool], httpx.Response], dialect: str
) -> None:
    response = broken[dialect, False]
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    body = response.json()
    assert body["error"]["message"]
    if dialect == "messages":
        assert (body["type"], body["error"]["type"]) == ("error", "overloaded_error")
    else:
        assert body["error"]["code"] == "engine_crashed"


@pytest.mark.parametrize("dialect", REQUESTS)
def test_streams_end_in_one_error(
    broken: dict[tuple[str, bool], httpx.Response], dialect: str
) -> None:
    """Responses report it twice, as their API does: an event for SDKs and the failed response."""
    response = broken[dialect, True]
    assert response.status_code == 200
    datas = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(data) for data in datas if data != "[DONE]"]
    errors = [event for event in events if is_error(event)]
    assert errors == (events[-2:] if dialect == "responses" else events[-1:])
    if dialect == "responses":
        assert [event["type"] for event in errors] == ["error", "response.failed"]


def is_error(event: dict[str, Any]) -> bool:
    return event.get("type") in ("error", "response.failed") or event.get("error") is not None


def test_the_model_comes_back(scripted_server: ScriptedServe, broken: object) -> None:
    model = scripted_server.models["opened-thinking"]
    model.answers("are you back", "</think>Yes.")
    body = {"model": model.name, "messages": [{"role": "user", "content": "are you back"}]}

    def answer() -> httpx.Response:
        return httpx.post(
            f"{scripted_server.url}/v1/chat/completions", json=body, timeout=WAIT_TIMEOUT_S
        )

    wait_until(lambda: answer().status_code == 200, "it answers again")
    assert answer().json()["choices"][0]["message"]["content"] == "Yes."

    def is_free() -> bool:
        replica = scripted_server.replica(model.name)
        return replica is not None and replica["num_restarts"] >= 1 and replica["in_flight"] == 0

    wait_until(is_free, "it was restarted and holds nothing of them")
