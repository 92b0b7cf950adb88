"""A body of too many values is refused before it is decoded; a long text is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.wire.common import fields
from inference.wire.common.fields import read_json_object
from inference.wire.dialect import NO_CONTEXT
from inference.wire.errors import TooManyValuesError
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.responses import request as openai_responses
from tests.cases import each_case

MAX = fields.MAX_VALUES


@each_case("piece_bytes", [7, 1024, fields.PIECE_BYTES])
def test_the_bound_is_exact(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fields, "MAX_VALUES", 50)
    quoted = 'a "quoted" [word], {\\ and "another" \\'
    for values, is_refused in (
        ([quoted] * 49, False),
        ([quoted] * 50, True),
        ([[], {}] * 24, False),
        ([[], {}] * 24 + [[]], True),
        ([12345] * 1000, False),
    ):
        body = json.dumps({"input": values}).encode()
        if is_refused:
            with pytest.raises(TooManyValuesError, match="50"):
                read_json_object(body)
        else:
            assert read_json_object(body) == json.loads(body)


@each_case("parse", [openai_chat.parse, openai_responses.parse])
def test_too_many_messages_are_refused_undecoded(
    parse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields.orjson, "loads", None)
    body = b'{"messages":[' + b'{"role":"user","content":"Hi"},' * (MAX // 4 + 1) + b"{}]}"
    with pytest.raises(TooManyValuesError) as refused:
        parse(body, NO_CONTEXT)
    assert (refused.value.status, refused.value.code) == (400, "too_many_values")


def test_a_long_text_full_of_quotes_is_one_string() -> None:
    text = json.dumps([{"a": "b\\", "c": []}] * MAX)
    assert read_json_object(json.dumps({"input": text}).encode()) == {"input": text}
