"""An Anthropic client's cache marks, as its upstream of that dialect is sent them."""

from __future__ import annotations

import json
from typing import Any

from inference.wire.anthropic import messages
from inference.wire.upstream.messages_request import body_of
from inference.wire.upstream.sending import Sending
from tests.cases import each_case
from tests.inference.gateway.upstreams.forwarding import RED_PIXELS

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
HI = {"role": "user", "content": "hi"}


def text(text: str, mark: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": text, **(mark or {})}


def sent(**fields: Any) -> dict[str, Any]:
    body = {"model": "far", "max_tokens": 5, "messages": [HI], **fields}
    generation = messages.parse(json.dumps(body).encode()).generation
    found: dict[str, Any] = json.loads(body_of(generation, Sending(model="m")))
    return found


def test_marks_stand_where_the_client_set_them() -> None:
    turns = [
        {"role": "user", "content": [text("a"), text("b", MARK), text("c")]},
        {
            "role": "assistant",
            "content": [
                text("so"),
                {"type": "tool_use", "id": "1", "name": "f", "input": {}, **MARK},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "rain", **HOUR},
                text("d", MARK),
            ],
        },
    ]
    body = sent(
        messages=turns,
        system=[text("long", HOUR), text("today")],
        tools=[TOOL, {**TOOL, "name": "g", **MARK}],
    )
    assert body["system"] == [text("long", HOUR), text("today")]
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, MARK["cache_control"]]
    first, second, third = (turn["content"] for turn in body["messages"])
    assert first == [text("a\nb", MARK), text("c")]
    assert [block.get("cache_control") for block in second] == [None, MARK["cache_control"]]
    assert [block.get("cache_control") for block in third] == [
        HOUR["cache_control"],
        MARK["cache_control"],
    ]


def test_turns_without_marks_are_sent_as_before() -> None:
    body = sent(system=[text("a"), text("b")], tools=[TOOL])
    assert body["system"] == "a\nb"
    assert "cache_control" not in json.dumps(body)
    assert sent(**MARK)["cache_control"] == MARK["cache_control"]


@each_case("last", ["", "  "])
def test_white_space_has_no_mark(last: str) -> None:
    body = sent(messages=[{"role": "user", "content": [text("a", MARK), text(last, MARK)]}])
    marks = [block.get("cache_control") for block in body["messages"][0]["content"]]
    assert len([mark for mark in marks if mark]) <= 1
    for block in body["messages"][0]["content"]:
        assert block["text"].strip() or "cache_control" not in block


def test_the_start_of_an_answer_has_none() -> None:
    body = sent(messages=[HI, {"role": "assistant", "content": [text("It is", MARK)]}])
    assert body["messages"][-1]["content"] == [text("It is")]


def test_an_image_has_its_turns_mark() -> None:
    data = RED_PIXELS.partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    image = {"type": "image", "source": source, **MARK}
    parsed = messages.parse(
        json.dumps(
            {
                "model": "far",
                "max_tokens": 5,
                "messages": [{"role": "user", "content": [text("a"), image, text("b")]}],
            }
        ).encode()
    ).generation
    (mark,) = parsed.cache_marks
    assert (mark.message, mark.at) == (0, None)
