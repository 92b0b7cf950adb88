"""An operator may have unknown fields ignored; the answer names them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from inference.gateway.consumers.api_consumer import ignored_headers
from inference.protocol.events import Accepted, Event
from inference.protocol.generation import Submit
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron, paris

TURN = {"role": "user", "content": "Hi", "mood": "calm"}
ASK: dict[str, Any] = {"model": "tiny", "messages": [TURN], "min_keep": 1}
HEADER = "x-helexa-ignored"


@pytest.mark.parametrize("stream", [False, True])
async def test_they_are_left_out_and_named(
    make_client: MakeClient, neuron: FakeNeuron, stream: bool
) -> None:
    client = make_client(ignores_unknown_fields=True)
    answer = await client.open("POST", "/v1/chat/completions", {**ASK, "stream": stream}).finish()
    assert answer.status == 200
    assert answer.headers[HEADER] == "messages[0].mood, min_keep"


async def test_what_is_refused_by_name_stays_so(make_client: MakeClient) -> None:
    client = make_client(ignores_unknown_fields=True)
    answer = await client.open("POST", "/v1/chat/completions", {**ASK, "audio": {}}).finish()
    assert (answer.status, answer.error["param"]) == (400, "audio")


async def test_they_are_refused_by_default(make_client: MakeClient) -> None:
    answer = await make_client().open("POST", "/v1/chat/completions", ASK).finish()
    assert (answer.status, answer.error["param"]) == (400, "messages[0].mood")
    assert HEADER not in answer.headers


def test_the_header_holds_any_names() -> None:
    assert ignored_headers([]) == []
    ((_, value),) = ignored_headers(["a b", "é\r\nx: 1", "n" * 500])
    assert value.isascii() and b"\r" not in value and b"\n" not in value
    assert value.startswith(b"a%20b, %C3%A9%0D%0Ax%3A%201, nnn")
    ((_, value),) = ignored_headers([f"f{number}" for number in range(40)])
    assert value.endswith(b"f31, and 8 more")
    assert ignored_headers(["\ud800"]), "what is no text in UTF-8 either"


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/messages", {"max_tokens": 5, "stream": True}),
        ("/api/chat", {"stream": True}),
        ("/v1/responses", {"store": False}),
    ],
)
async def test_what_a_grammar_leaves_out_of_schemas_is_named(
    make_client: MakeClient, neuron: FakeNeuron, path: str, more: dict[str, Any]
) -> None:
    async def leaving_out(submit: Submit) -> AsyncIterator[list[Event]]:
        async for events in paris(submit):
            if isinstance(events[0], Accepted):
                events = [msgspec.structs.replace(events[0], not_enforced=["tools[0].a.pattern"])]
            yield events

    neuron.script = leaving_out
    messages = "input" if path == "/v1/responses" else "messages"
    turns = [{"role": "user", "content": "Hi"}]
    body = {"model": "tiny", messages: turns, **more}
    answer = await make_client().open("POST", path, body).finish()
    assert (answer.status, answer.headers[HEADER]) == (200, "tools[0].a.pattern")
