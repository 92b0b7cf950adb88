"""Grammars of calls whose arguments are tags: references, schemas, keys and values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.protocol.generation import ToolDefinition
from inference.text.errors import UnsupportedSchemaError
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS, read, tool
from tests.inference.text.tool_calls.conftest import Vocabulary
from tests.inference.text.tool_calls.enforced import REQUIRED, Enforced, written


def test_tags_cannot_hold_text_to_a_pattern(vocabulary: Vocabulary) -> None:
    held = tool("f", {"a": {"type": "string", "pattern": "^x"}})
    with pytest.raises(UnsupportedSchemaError, match="pattern") as caught:
        Enforced("qwen_coder", vocabulary, [held], REQUIRED)
    assert caught.value.param == "tools.f.properties.a.pattern"
    assert caught.value.tool is held


def test_references_of_tags_start_at_the_tools_schema(vocabulary: Vocabulary) -> None:
    properties = {
        "size": {"type": "integer", "maximum": 9},
        "depth": {"allOf": [{"$ref": "#/properties/size"}]},
        "children": {"type": "array", "items": {"$ref": "#"}},
        "never": False,
    }
    nested = tool("tree", properties, required=["size"], strict=True)
    enforced = Enforced("qwen_coder", vocabulary, [nested], REQUIRED)
    child = {"size": 1, "children": []}

    def accepts(**arguments: Any) -> bool:
        return enforced.accepts(written("qwen_coder", ("tree", arguments)))

    assert accepts(size=3)
    assert accepts(size=3, depth=2, children=[child])
    assert not accepts(size=3, depth=10)
    assert not accepts(size=3, children=[[]])
    assert not accepts(size=3, never=1)
    assert not accepts()


@each_case("keyword", ["required", "properties"])
def test_a_schema_that_is_none_is_refused(keyword: str, vocabulary: Vocabulary) -> None:
    broken = ToolDefinition(name="f", path="tools.f", parameters={keyword: 7})
    with pytest.raises(UnsupportedSchemaError, match="properties an object"):
        Enforced("qwen_coder", vocabulary, [broken], REQUIRED)


@each_case("key", ["Straße 🙂", 'a"b', "a\\b", "a/b#c%d~e", "a\tb", "\x7f", "\u2028"])
def test_any_key_and_value_can_be_enforced(key: str, vocabulary: Vocabulary) -> None:
    properties = {key: {"type": "integer"}, "e": {"enum": [key]}}
    strict = tool("f", properties, required=list(properties), strict=True)
    enforced = Enforced("qwen_coder", vocabulary, [strict], REQUIRED)
    answer = written("qwen_coder", ("f", {key: 3, "e": key}))
    assert enforced.accepts(answer)
    ((_, arguments),) = read(FORMATS["qwen_coder"], answer, [strict])
    assert json.loads(arguments) == {key: 3, "e": key}


@each_case("key", ["", "a>b", "<a", "a\nb", " a", "a" * 301])
def test_keys_that_no_tag_can_hold(key: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(UnsupportedSchemaError):
        Enforced("qwen_coder", vocabulary, [tool("f", {key: {}}, strict=True)], REQUIRED)
    loose = Enforced("qwen_coder", vocabulary, [tool("f", {key: {}})], REQUIRED)
    assert loose.accepts(written("qwen_coder", ("f", {})))
