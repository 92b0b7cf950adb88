"""What every dialect does alike: streams that any reader reads whole, clients that leave, waits,
failures, and fields that are ignored. A real Redis stands between the gateway and a fake neuron."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from inference.gateway.consumers import generate as generation
from inference.gateway.metrics import client_family
from inference.gateway.server.http_messages import ADVISED, advice_headers, ignored_headers
from inference.protocol.events import Accepted, Event, Failure
from inference.protocol.generation import Submit
from inference.wire.errors import ModelNotFoundError, RequestFailedError, ServiceUnavailableError
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.conftest import FakeCatalogue, MakeClient
from tests.inference.gateway.fake_neuron import (
    ACCEPTED,
    FakeNeuron,
    Script,
    accepts,
    deltas,
    ended,
    endless,
    failing,
    paris,
    saying,
    says,
    silent,
)

CHAT, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"
RESPONSES = "/v1/responses"
PROMPT = {"model": "tiny", "prompt": "Hi"}
INPUT = {"model": "tiny", "input": "Hi", "store": False}
LINE_ENDS = "\N{NEXT LINE}\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}\v\f\x1c\x1d\x1e\r\n"
EMPTY_LINE = b'"message":{"role":"assistant","content":""},"done":false'
UNKNOWN = chat_body(messages=[{"role": "user", "content": "Hi", "mood": "calm"}], min_keep=1)
IGNORED = "x-helexa-ignored"
FULL = RequestFailedError(Failure(code="context_length_exceeded", message="Too long."))


@each_case(
    ("path", "body"),
    [
        (CHAT, chat_body()),
        ("/v1/completions", PROMPT),
        (RESPONSES, INPUT),
        (MESSAGES, chat_body(max_tokens=9)),
        (OLLAMA, chat_body()),
        ("/api/generate", PROMPT),
    ],
)
async def test_readers_that_know_every_line_end_read_streams_whole(
    client: AsgiClient, neuron: FakeNeuron, path: str, body: dict[str, Any]
) -> None:
    """httpx' ``iter_lines`` is such a reader: it splits the text."""
    neuron.script = says(f"a{LINE_ENDS}b")
    answer = await client.post(path, body | {"stream": True})
    streamed = answer.body.decode().splitlines()
    data = [line.removeprefix("data: ") for line in streamed if line[:1] not in ("", "e", ":")]
    read = [json.loads(one) for one in data if one != "[DONE]"]
    assert json.dumps(f"a{LINE_ENDS}b") in json.dumps(read)
    is_lines = path.startswith("/api/")
    kind = "application/x-ndjson" if is_lines else "text/event-stream; charset=utf-8"
    assert answer.headers["content-type"] == kind
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no", "proxies send it on as it comes"


@each_case(
    "case",
    [
        (CHAT, silent, b": waiting\n\n" * 2),
        (MESSAGES, silent, b": waiting\n\n" * 2),
        (MESSAGES, accepts, b'event: ping\ndata: {"type":"ping"}\n\n' * 2),
        (OLLAMA, silent, EMPTY_LINE),
    ],
    ids=str,
)
async def test_a_quiet_stream_is_kept_alive(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch, case: Any
) -> None:
    path, script, frames = case
    monkeypatch.setattr(generation, "STREAM_GRACE_S", 0.05)
    monkeypatch.setattr(generation, "KEEP_ALIVE_S", 0.05)
    neuron.script = script
    more = {} if path == OLLAMA else {"max_tokens": 9}
    exchange = client.open("POST", path, chat_body(stream=True, **more))
    await exchange.until(frames)
    assert (b"message_start" in exchange.body) == (script is accepts)
    assert (b"ping" in exchange.body) == (script is accepts)
    exchange.leave()
    await exchange.finish()


async def test_lost(client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue) -> None:
    def shifted(script: Script, by: int) -> Script:
        """What follows the acceptance is lost, or each step comes twice."""

        async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
            async for events in script(submit):
                yield events
                if by < 0 or isinstance(events[0], Accepted):
                    neuron.sequence_numbers[submit.gateway_id] += by
                if by < 0:
                    yield events

        return answer

    neuron.script = shifted(saying([ACCEPTED], *deltas("after the hole")), 1)
    answer = await client.post(CHAT, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "events_lost")
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == answer.headers["x-request-id"]
    hundred = [event for step in deltas(*100 * "x") for event in step]
    # Half a minute of a fast model comes at once; that is no slow client.
    fast = saying([ACCEPTED], *100 * [hundred], ended(completion_tokens=10_000))
    for script, text in ((shifted(paris, -1), "The capital is Paris."), (fast, 10_000 * "x")):
        neuron.script = script
        answer = await client.post(CHAT, chat_body())
        assert answer.json["choices"][0]["message"]["content"] == text
    # A neuron that falls silent fails its requests once.
    neuron.script = endless
    streamed, whole = (
        client.open("POST", CHAT, chat_body(stream=stream)) for stream in (True, False)
    )
    for _ in range(2):
        await asyncio.wait_for(neuron.submitted.get(), 60)
    await streamed.until(b"on and")
    await neuron.die()
    await streamed.finish()
    await whole.finish()
    assert streamed.chunks[-1]["error"]["code"] == whole.error["code"] == "neuron_lost"
    assert (streamed.status, whole.status) == (200, 503)
    away = ServiceUnavailableError("database_unavailable", "away")
    for failure, code in ((None, "no_neuron"), (away, "database_unavailable")):
        catalogue.failure = failure
        refused = await client.post(CHAT, chat_body())
        assert (refused.status, refused.error["code"]) == (503, code)
        assert int(refused.headers["retry-after"]) >= 1


async def test_own_headers(make_client: MakeClient, neuron: FakeNeuron, client: AsgiClient) -> None:
    accepted = msgspec.structs.replace(ACCEPTED, not_enforced=["tools[0].a.pattern"])
    neuron.script = saying([accepted], *deltas("Paris."), ended(completion_tokens=1))
    for path, body in ((MESSAGES, chat_body(max_tokens=5, stream=True)), (RESPONSES, INPUT)):
        answer = await client.post(path, body)
        assert (answer.status, answer.headers[IGNORED]) == (200, "tools[0].a.pattern")
    neuron.script = paris
    lenient = make_client(ignores_unknown_fields=True)
    for stream in (False, True):
        answer = await lenient.post(CHAT, UNKNOWN | {"stream": stream})
        assert (answer.status, answer.headers[IGNORED]) == (200, "messages[0].mood, min_keep")
    refused = await lenient.post(CHAT, UNKNOWN | {"audio": {}})
    assert (refused.status, refused.error["param"]) == (400, "audio"), "it is known and refused"
    refused = await client.post(CHAT, UNKNOWN)
    assert (refused.status, refused.error["param"]) == (400, "messages[0].mood")
    assert IGNORED not in refused.headers
    assert ignored_headers([]) == []
    ((_, value),) = ignored_headers(["a b", "é\r\nx: 1", "n" * 500])
    assert value.isascii() and b"\r" not in value and b"\n" not in value
    assert value.startswith(b"a%20b, %C3%A9%0D%0Ax%3A%201, nnn")
    ((_, value),) = ignored_headers([f"f{number}" for number in range(40)])
    assert value.endswith(b"f31, and 8 more")
    assert ignored_headers(["\ud800"]), "what is no text in UTF-8 either"
    # The advice is in the refusal alone.
    neuron.script = failing
    agent = {"user-agent": "claude-cli/2.1.76 (external, cli)"}
    for more, is_advised in (({}, True), ({"temperature": 9}, False)):
        refused = await client.post(MESSAGES, chat_body(max_tokens=9, **more), headers=agent)
        advice = refused.headers.get(ADVISED.decode(), "")
        assert (refused.status, "CLAUDE_CODE_MAX_CONTEXT_TOKENS" in advice) == (400, is_advised)


@each_case(
    ("agent", "name"),
    [
        ("claude-cli/2.1.76 (external, cli)", "Claude Code"),
        ("claude-code/2.2.0", "Claude Code"),
        ("opencode/1.18.0 ai-sdk/openai-compatible/3.0.41", "opencode"),
        ("Zed/0.210.1 (linux; x86_64)", "Zed"),
        ("Open WebUI (https://github.com/open-webui/open-webui)", "Open WebUI"),
        ("agent-zero/1.2 litellm/1.80.0", "Agent Zero"),
        ("litellm/1.80.0", "LiteLLM"),
        ("ai/6.0.1 ai-sdk/anthropic/3.0.1", "AI SDK"),
        *[(agent, None) for agent in ("", "OpenAI/Python 3.52.0", "organized/1", "chai/4")],
    ],
)
def test_known_clients_get_advice_on_a_full_context(agent: str, name: str | None) -> None:
    client = client_family(agent)
    advice = [text.decode("ascii") for _, text in advice_headers(client, FULL)]
    assert [text.partition(":")[0] for text in advice] == ([] if name is None else [name])
    assert advice_headers(client, ModelNotFoundError("m")) == []
