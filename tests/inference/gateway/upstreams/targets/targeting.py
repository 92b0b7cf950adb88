"""A chat with a model that has several targets, and their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import Submit
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.fake_metering import KEY
from tests.servers.fake_upstream import Asked, Wire, chunk, usage

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
OWN, FAR = "The capital is Paris.", "Hello"
PARTS = [chunk({"content": FAR}), chunk(finish="stop"), usage(7, 2)]
AUTHORIZED = {"authorization": f"Bearer {KEY}"}


def answers(asked: Asked, wire: Wire) -> None:
    wire.stream(PARTS)


def refuses(status: int, **headers: str) -> Any:
    return lambda asked, wire: wire.json(status, {"error": {"message": "no"}}, **headers)


def failing(code: str, *, accepts: bool = False) -> Any:
    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        if accepts:
            yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
        yield [Failed(request_id=submit.request_id, failure=Failure(code=code, message="no"))]

    return script


async def chat(client: AsgiClient, **fields: Any) -> Exchange:
    return await client.post(PATH, {**CHAT, **fields})


def text_of(answer: Exchange) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])
