"""A body of too many strings is refused before it is decoded, in every dialect; text is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.wire import fields, json_strings, openai_chat, openai_responses
from inference.wire.dialect import NO_CONTEXT
from inference.wire.errors import TooManyStringsError
from inference.wire.fields import read_json_object

MAX = json_strings.MAX_STRINGS


@pytest.mark.parametrize("piece_bytes", [7, 1024, json_strings.PIECE_BYTES])
def test_the_bound_is_exact(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_strings, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(json_strings, "MAX_STRINGS", 50)
    quoted = 'a "quoted" word, \\ and "another" '
    for num_strings, is_refused in ((49, False), (50, True)):
        body = json.dumps({"input": [quoted] * num_strings}).encode()
        if is_refused:
            with pytest.raises(TooManyStringsError, match="50"):
                read_json_object(body)
        else:
            assert read_json_object(body) == json.loads(body)


@pytest.mark.parametrize("parse", [openai_chat.parse, openai_responses.parse])
def test_too_many_messages_are_refused_undecoded(
    parse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields.orjson, "loads", None)
    body = b'{"messages":[' + b'{"role":"user","content":"Hi"},' * (MAX // 4 + 1) + b"{}]}"
    with pytest.raises(TooManyStringsError) as refused:
        parse(body, NO_CONTEXT)
    assert (refused.value.status, refused.value.code) == (400, "too_many_strings")


def test_a_long_text_full_of_quotes_is_one_string() -> None:
    text = json.dumps([{"a": "b\\"}] * MAX)
    assert read_json_object(json.dumps({"input": text}).encode()) == {"input": text}
