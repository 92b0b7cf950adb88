"""Random answers under a grammar's mask can be read as calls of the tools."""

from __future__ import annotations

import json
import random

import pytest

from inference.protocol.generation import ToolChoice
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS, Call, read
from tests.inference.text.tool_calls.conftest import Vocabulary
from tests.inference.text.tool_calls.enforced import (
    AUTO,
    NOW,
    OTHER,
    PROPERTIES,
    REQUIRED,
    STRICT,
    Enforced,
)

pytestmark = pytest.mark.slow

SNIPPETS = [
    *('"', "}", "]", ",", "</parameter>", "<tool_call>", "[TOOL_CALLS]", "<function=", "1", ": "),
    *("</tool_call>", "<|python_tag|>", "{", '{"name"', "\n"),
]


def _follows_schema(call: Call) -> bool:
    name, arguments = call[0], json.loads(call[1])
    if name == "now":
        return arguments == {}
    if name == "other":
        return True
    return (
        isinstance(arguments["city"], str)
        and isinstance(arguments.get("days", 1), int)
        and arguments.get("unit", "C") in ("C", "F")
        and arguments.get("exact") in (True, False, None)
        and all(isinstance(place["lat"], int | float) for place in arguments.get("near", []))
        and arguments.keys() <= PROPERTIES.keys()
    )


@each_case("name", FORMATS)
@each_case("choice", [AUTO, REQUIRED], ids=["auto", "required"])
@each_case("parallel", [True, False])
def test_what_a_grammar_lets_through_can_be_read(
    name: str, choice: ToolChoice, parallel: bool, vocabulary: Vocabulary
) -> None:
    enforced = Enforced(name, vocabulary, [STRICT, NOW, OTHER], choice, parallel=parallel)
    chooser = random.Random(7)
    num_ended = num_calls = 0
    for _ in range(12):
        answer = enforced.walk(chooser, SNIPPETS, ends=0.1, jumps=0.4)
        if answer is None:
            continue
        num_ended += 1
        parts = read(FORMATS[name], answer, [STRICT, NOW, OTHER])
        calls = [part for part in parts if not isinstance(part, str)]
        num_calls += len(calls)
        assert all(map(_follows_schema, calls)), answer
        assert parallel or len(calls) <= 1, answer
        assert choice.mode == "auto" or parts == calls != [], answer
    assert num_ended > 0
    assert num_calls > 0 or choice.mode == "auto"
