"""Anthropic's dialect against its own SDK's types, and a client's cache marks, as its upstream of
that dialect is sent them."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import anthropic.types as sdk
import anthropic.types.beta as beta
import orjson
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params

from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import page_of
from inference.wire.errors import ApiError
from inference.wire.upstream import Sending
from inference.wire.upstream.messages_request import body_of as upstream_body
from tests.cases import each_case
from tests.inference.gateway.upstreams.conftest import RED_PIXELS

NESTED = anthropic_messages.NESTED_FIELDS
MESSAGES = [{"role": "user", "content": "Hi"}]
BASE: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": MESSAGES}


def parse(**changes: Any) -> anthropic_messages.MessagesRequest:
    return anthropic_messages.parse(orjson.dumps({**BASE, **changes}))


@each_case(
    ("params", "fields"),
    [
        (message_create_params.MessageCreateParamsStreaming, anthropic_messages.FIELDS),
        (beta_create_params.MessageCreateParamsStreaming, anthropic_messages.FIELDS),
        (message_count_tokens_params.MessageCountTokensParams, anthropic_messages.COUNT_FIELDS),
        (beta_count_params.MessageCountTokensParams, anthropic_messages.COUNT_FIELDS),
        (sdk.ToolParam, NESTED["tools"]),
        (beta.BetaToolParam, NESTED["tools"]),
        (sdk.UserMessageParam, NESTED["user messages"]),
        (sdk.AssistantMessageParam, NESTED["assistant messages"]),
        (beta.BetaSystemMessageParam, NESTED["system messages"]),
        (sdk.TextBlockParam, NESTED["text blocks"]),
        (sdk.ThinkingBlockParam, NESTED["thinking blocks"]),
        (sdk.RedactedThinkingBlockParam, NESTED["redacted_thinking blocks"]),
        (sdk.ToolUseBlockParam, NESTED["tool_use blocks"]),
        (sdk.ToolResultBlockParam, NESTED["tool_result blocks"]),
        (sdk.ToolReferenceBlockParam, NESTED["tool_reference blocks of a result"]),
        (sdk.ToolChoiceAnyParam, NESTED["tool_choice any"]),
        (sdk.ToolChoiceAutoParam, NESTED["tool_choice auto"]),
        (sdk.ToolChoiceNoneParam, NESTED["tool_choice none"]),
        (sdk.ToolChoiceToolParam, NESTED["tool_choice tool"]),
        (sdk.ThinkingConfigAdaptiveParam, NESTED["thinking adaptive"]),
        (sdk.ThinkingConfigDisabledParam, NESTED["thinking disabled"]),
        (sdk.ThinkingConfigEnabledParam, NESTED["thinking enabled"]),
        (beta.BetaOutputConfigParam, NESTED["output_config"]),
        (sdk.JSONOutputFormatParam, NESTED["output_config.format"]),
        (beta.BetaContextManagementConfigParam, NESTED["context_management"]),
        (beta.BetaClearThinking20251015EditParam, NESTED["clear_thinking_20251015"]),
        (sdk.CacheControlEphemeralParam, NESTED["cache_control"]),
        (sdk.MetadataParam, NESTED["metadata"]),
        (sdk.DiagnosticsParam, NESTED["diagnostics"]),
    ],
)
def test_every_field_of_the_sdk_is_in_a_table(params: Any, fields: dict[str, Any]) -> None:
    assert get_type_hints(params).keys() <= fields.keys()


def test_a_count_renders_what_the_message_would_and_generates_nothing() -> None:
    options: dict[str, Any] = {
        "system": "Be brief.",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
    }
    body = orjson.dumps({"model": "m", "messages": MESSAGES, **options})
    counted = anthropic_messages.parse_count(body)
    assert counted.input == parse(**options).generation.input
    for name in ("max_tokens", "stream", "temperature", "stop_sequences"):
        with pytest.raises(ApiError, match=name):
            anthropic_messages.parse_count(orjson.dumps({"messages": MESSAGES, name: 1}))


def test_a_page_says_whether_more_follow() -> None:
    for num_objects in (0, 2, 3):
        page = page_of([{"id": str(number)} for number in range(num_objects)], 2)
        assert [one["id"] for one in page["data"]] == ["0", "1"][:num_objects]
        assert page["has_more"] is (num_objects > 2)


MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
HI = {"role": "user", "content": "hi"}


def text(text: str, mark: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": text, **(mark or {})}


def sent(**fields: Any) -> dict[str, Any]:
    body = {"model": "far", "max_tokens": 5, "messages": [HI], **fields}
    generation: Any = anthropic_messages.parse(json.dumps(body).encode()).generation
    images = {image.digest: image for image in generation.input.images}
    found: dict[str, Any] = json.loads(upstream_body(generation, Sending(model="m", images=images)))
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


def test_only_what_is_marked_and_can_be_has_a_mark() -> None:
    """Turns without marks are sent as before; white space and the start of an answer have none."""
    body = sent(system=[text("a"), text("b")], tools=[TOOL])
    assert body["system"] == "a\nb"
    assert "cache_control" not in json.dumps(body)
    assert sent(**MARK)["cache_control"] == MARK["cache_control"]
    for last in ("", "  "):
        body = sent(messages=[{"role": "user", "content": [text("a", MARK), text(last, MARK)]}])
        for block in body["messages"][0]["content"]:
            assert block["text"].strip() or "cache_control" not in block
    body = sent(messages=[HI, {"role": "assistant", "content": [text("It is", MARK)]}])
    assert body["messages"][-1]["content"] == [text("It is")]
