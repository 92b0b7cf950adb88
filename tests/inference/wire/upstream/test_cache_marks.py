"""An Anthropic client's cache marks, as its upstream of that dialect is sent them."""

from __future__ import annotations

import json
from typing import Any

from inference.wire.anthropic import messages
from inference.wire.upstream.messages_request import body_of
from inference.wire.upstream.sending import Sending
from tests.inference.gateway.upstreams.forwarding import RED_PIXELS

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
HI = {"role": "user", "content": "hi"}


def text(text: str, mark: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": text, **(mark or {})}


def sent(**fields: Any) -> dict[str, Any]:
    body = {"model": "far", "max_tokens": 5, "messages": [HI], **fields}
    generation: Any = messages.parse(json.dumps(body).encode()).generation
    images = {image.digest: image for image in generation.input.images}
    found: dict[str, Any] = json.loads(body_of(generation, Sending(model="m", images=images)))
    return found


def test_marks_stand_where_the_client_set_them() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}, **MARK}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "rain", **HOUR}
    source = {"type": "base64", "media_type": "image/png", "data": RED_PIXELS.partition(",")[2]}
    image = {"type": "image", "source": source, **MARK}
    turns = [
        {"role": "user", "content": [text("a"), text("b", MARK), text("c")]},
        {"role": "assistant", "content": [text("so"), call]},
        {"role": "user", "content": [result, text("d", MARK)]},
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": [text("e"), image]},
    ]
    body = sent(
        messages=turns,
        system=[text("long", HOUR), text("today")],
        tools=[TOOL, {**TOOL, "name": "g", **MARK}],
    )
    assert body["system"] == [text("long", HOUR), text("today")]
    first, second, third, _, last = (turn["content"] for turn in body["messages"])
    assert first == [text("a\nb", MARK), text("c")]
    mark, hour = MARK["cache_control"], HOUR["cache_control"]
    for marked, expected in (
        (body["tools"], [None, mark]),
        (second, [None, mark]),
        (third, [hour, mark]),
        (last, [None, mark]),
    ):
        assert [block.get("cache_control") for block in marked] == expected


def test_turns_without_marks_are_sent_as_before() -> None:
    body = sent(system=[text("a"), text("b")], tools=[TOOL])
    assert body["system"] == "a\nb"
    assert "cache_control" not in json.dumps(body)
    assert sent(**MARK)["cache_control"] == MARK["cache_control"]


def test_white_space_and_the_start_of_an_answer_have_no_mark() -> None:
    for last in ("", "  "):
        body = sent(messages=[{"role": "user", "content": [text("a", MARK), text(last, MARK)]}])
        for block in body["messages"][0]["content"]:
            assert block["text"].strip() or "cache_control" not in block
    body = sent(messages=[HI, {"role": "assistant", "content": [text("It is", MARK)]}])
    assert body["messages"][-1]["content"] == [text("It is")]
