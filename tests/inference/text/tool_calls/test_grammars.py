"""What the grammars let through and what not, by llguidance itself; and all of it can be read."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher, grammar_from

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.tool_calls.errors import UnsupportedSchemaError
from tests.inference.text.tool_calls.calls import FORMATS, Call, read, tool
from tests.inference.text.tool_calls.conftest import END_TOKEN_ID, Vocabulary

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"enum": ["C", "F"]},
    "exact": {"type": ["boolean", "null"]},
    "near": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
}
DEFINITIONS = {
    "Place": {
        "type": "object",
        "properties": {"lat": {"type": "number"}},
        "required": ["lat"],
        "additionalProperties": False,
    }
}


def _with_definitions(definition: ToolDefinition) -> ToolDefinition:
    assert definition.parameters is not None
    parameters = {**definition.parameters, "$defs": DEFINITIONS}
    return ToolDefinition(
        name=definition.name,
        path=definition.path,
        parameters=parameters,
        strict=definition.strict,
    )


STRICT = _with_definitions(tool("weather", PROPERTIES, required=["city"], strict=True))
LOOSE = _with_definitions(tool("weather", PROPERTIES, required=["city"]))
NOW = ToolDefinition(name="now", path="tools.1", strict=True)
OTHER = tool("other", {"a": {"type": "integer"}})

AUTO, REQUIRED, NAMED = (
    ToolChoice(),
    ToolChoice(mode="required"),
    ToolChoice(mode="required", name="now"),
)

GOOD_CALL = ("weather", {"city": "Paris", "days": 3, "unit": "C", "near": [{"lat": 1.5}]})
NOW_CALL: tuple[str, dict[str, Any]] = ("now", {})
BAD_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("weather", {"days": 3}),
    ("weather", {"city": "Paris", "days": "x"}),
    ("weather", {"city": "Paris", "unit": "K"}),
    ("weather", {"city": "Paris", "near": [{"lon": 1}]}),
    ("weather", {"city": "Paris", "more": 1}),
    ("now", {"a": 1}),
    ("nobody", {}),
]


def _tags(name: str, arguments: dict[str, Any]) -> str:
    values = [
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>"
        for key, value in arguments.items()
    ]
    return "\n".join([f"<function={name}>", *values, "</function>"])


def written(name: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """As models of that format write these calls."""
    key = "parameters" if name == "llama3" else "arguments"
    objects = [json.dumps({"name": call, key: arguments}) for call, arguments in calls]
    match name:
        case "hermes":
            return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
        case "qwen_coder":
            return "\n".join(f"<tool_call>\n{_tags(*call)}\n</tool_call>" for call in calls)
        case "llama3":
            return "; ".join(objects)
        case "mistral":
            return f"[TOOL_CALLS][{', '.join(objects)}]"
        case _:
            return "".join(f"[TOOL_CALLS]{call}[ARGS]{json.dumps(one)}" for call, one in calls)


class Enforced:
    """One grammar over one vocabulary."""

    def __init__(
        self,
        name: str,
        vocabulary: Vocabulary,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool = True,
    ) -> None:
        text = FORMATS[name].grammar(tools, choice, parallel=parallel, tokenizer=vocabulary.text)
        assert text is not None
        self.vocabulary = vocabulary
        self._grammar = grammar_from("lark", text)
        self.start()

    def start(self) -> LLMatcher:
        matcher = LLMatcher(self.vocabulary.grammar, self._grammar)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def accepts(self, text: str | list[int]) -> bool:
        token_ids = self.vocabulary.encode(text) if isinstance(text, str) else text
        matcher = self.start()
        return all(map(matcher.consume_token, token_ids)) and matcher.is_accepting()


@pytest.mark.parametrize("name", FORMATS)
class TestRequired:
    def test_one_or_more_calls(self, name: str, vocabulary: Vocabulary) -> None:
        enforced = Enforced(name, vocabulary, [STRICT, NOW], REQUIRED)
        assert enforced.accepts(written(name, GOOD_CALL))
        assert enforced.accepts(written(name, GOOD_CALL, NOW_CALL, GOOD_CALL))
        assert not enforced.accepts("")
        assert not enforced.accepts("I do not want to.")
        assert not enforced.accepts(f"{written(name, NOW_CALL)} And then.")

    def test_exactly_one(self, name: str, vocabulary: Vocabulary) -> None:
        enforced = Enforced(name, vocabulary, [STRICT, NOW], REQUIRED, parallel=False)
        assert enforced.accepts(written(name, NOW_CALL))
        assert not enforced.accepts("")
        assert not enforced.accepts(written(name, NOW_CALL, NOW_CALL))

    def test_the_named_function(self, name: str, vocabulary: Vocabulary) -> None:
        enforced = Enforced(name, vocabulary, [STRICT, NOW], NAMED, parallel=False)
        assert enforced.accepts(written(name, NOW_CALL))
        assert not enforced.accepts(written(name, GOOD_CALL))

    @pytest.mark.parametrize("call", BAD_CALLS)
    def test_schemas_hold(
        self, name: str, vocabulary: Vocabulary, call: tuple[str, dict[str, Any]]
    ) -> None:
        for first in (STRICT, LOOSE):
            enforced = Enforced(name, vocabulary, [first, NOW], REQUIRED)
            assert not enforced.accepts(written(name, call))

    def test_arguments_are_not_counted_where_the_schema_is_loose(
        self, name: str, vocabulary: Vocabulary
    ) -> None:
        """Named ``minProperties`` or not, a property stays one."""
        counted = tool("count", {"u": {"type": "string"}, "minProperties": {"type": "integer"}})
        assert counted.parameters is not None
        parameters = {**counted.parameters, "minProperties": 1}
        counted = msgspec.structs.replace(counted, parameters=parameters)
        enforced = Enforced(name, vocabulary, [counted], REQUIRED)
        assert enforced.accepts(written(name, ("count", {"u": "a"})))
        assert enforced.accepts(written(name, ("count", {"u": "a", "minProperties": 3})))
        assert not enforced.accepts(written(name, ("count", {"minProperties": "x"})))


@pytest.mark.parametrize("name", FORMATS)
class TestAuto:
    def test_nothing_to_enforce(self, name: str, vocabulary: Vocabulary) -> None:
        tool_format = FORMATS[name]
        for choice, parallel in ((AUTO, True), (ToolChoice(mode="none"), False)):
            assert (
                tool_format.grammar([LOOSE], choice, parallel=parallel, tokenizer=vocabulary.text)
                is None
            )

    def test_text_is_free(self, name: str, vocabulary: Vocabulary) -> None:
        enforced = Enforced(name, vocabulary, [STRICT, OTHER], AUTO)
        assert enforced.accepts("")
        assert enforced.accepts('Text, <b>, {"a": [1]}, [x]\n\n and é🙂.')

    def test_strict_tools_are_held_to_their_schema(self, name: str, vocabulary: Vocabulary) -> None:
        enforced = Enforced(name, vocabulary, [STRICT, NOW, OTHER], AUTO)
        assert enforced.accepts(written(name, GOOD_CALL, NOW_CALL))
        for call in BAD_CALLS:
            assert not enforced.accepts(written(name, call))
            assert not enforced.accepts(written(name, GOOD_CALL, call))

    def test_other_tools_are_not(self, name: str, vocabulary: Vocabulary) -> None:
        enforced = Enforced(name, vocabulary, [STRICT, OTHER], AUTO)
        assert enforced.accepts(written(name, ("other", {"b": "x"})))

    def test_at_most_one_call(self, name: str, vocabulary: Vocabulary) -> None:
        enforced = Enforced(name, vocabulary, [LOOSE, OTHER], AUTO, parallel=False)
        assert enforced.accepts("No call.")
        assert enforced.accepts(written(name, ("other", {"b": "x"})))
        assert not enforced.accepts(written(name, ("other", {}), ("other", {})))


@pytest.mark.parametrize("name", ["hermes", "qwen_coder", "mistral", "mistral_named"])
def test_a_call_behind_text_is_enforced(name: str, vocabulary: Vocabulary) -> None:
    enforced = Enforced(name, vocabulary, [STRICT, NOW], AUTO)
    assert enforced.accepts(f"I look.\n{written(name, GOOD_CALL)}")
    assert not enforced.accepts(f"I look.\n{written(name, BAD_CALLS[0])}")


@pytest.mark.parametrize("name", ["hermes", "qwen_coder", "mistral", "mistral_named"])
def test_a_marker_that_is_spelled_out_is_enforced(name: str, vocabulary: Vocabulary) -> None:
    enforced = Enforced(name, vocabulary, [STRICT, NOW], AUTO)
    call = written(name, BAD_CALLS[0])
    marker = call[: 12 if call.startswith("[") else 11]
    spelled = [token_id for character in marker for token_id in vocabulary.encode(character)]
    assert enforced.accepts(spelled) is False
    rest = vocabulary.encode(call.removeprefix(marker))
    assert not enforced.accepts([*spelled, *rest])


def test_a_call_without_its_outer_tags_is_enforced(vocabulary: Vocabulary) -> None:
    enforced = Enforced("qwen_coder", vocabulary, [STRICT, NOW], AUTO)
    assert enforced.accepts(f"I look.\n{_tags(*GOOD_CALL)}")
    assert not enforced.accepts(f"I look.\n{_tags(*BAD_CALLS[0])}")


def test_llama_calls_are_enforced_wherever_they_are_read(vocabulary: Vocabulary) -> None:
    enforced = Enforced("llama3", vocabulary, [STRICT, NOW], AUTO)
    bad, good = written("llama3", BAD_CALLS[0]), written("llama3", GOOD_CALL)
    for before in ("\n", "I look.\n ", "<|python_tag|>", "I look. <|python_tag|>"):
        assert not enforced.accepts(before + bad)
    assert not enforced.accepts("[weather(days=3)]")
    assert enforced.accepts(f"I look: {bad}")
    has_tag = len(vocabulary.encode("<|python_tag|>")) == 1
    assert enforced.accepts(f"I look. <|python_tag|>{good}") is has_tag


def test_tags_cannot_hold_text_to_a_pattern(vocabulary: Vocabulary) -> None:
    strict = tool("f", {"a": {"type": "string", "pattern": "^x"}}, strict=True)
    with pytest.raises(UnsupportedSchemaError, match="pattern") as caught:
        Enforced("qwen_coder", vocabulary, [strict], REQUIRED)
    assert caught.value.param == "tools.f.properties.a.pattern"
    loose = tool("f", {"a": {"type": "string", "pattern": "^x"}})
    assert Enforced("qwen_coder", vocabulary, [loose], REQUIRED).accepts(
        written("qwen_coder", ("f", {"a": "y"}))
    )


SNIPPETS = [
    *('"', "}", "]", ",", "</parameter>", "<tool_call>", "[TOOL_CALLS]", "<function=", "1", ": "),
    *("</tool_call>", "<|python_tag|>", "{", '{"name"', "\n"),
]
MAX_STEPS = 300


def _walk(enforced: Enforced, chooser: random.Random) -> str | None:
    """A random answer under the mask; ``None`` for one that does not end."""
    matcher, vocabulary = enforced.start(), enforced.vocabulary
    token_ids: list[int] = []
    for _ in range(MAX_STEPS):
        if matcher.is_stopped() or (matcher.is_accepting() and chooser.random() < 0.1):
            return vocabulary.decode(token_ids)
        snippet = vocabulary.encode(chooser.choice(SNIPPETS))
        if chooser.random() < 0.4 and matcher.validate_tokens(snippet) == len(snippet):
            chosen = snippet
        else:
            bias = matcher.compute_logit_bias()
            chosen = [chooser.choice([i for i, allowed in enumerate(bias) if allowed])]
        if chosen == [END_TOKEN_ID]:
            return vocabulary.decode(token_ids)
        assert matcher.consume_tokens(chosen), matcher.get_error()
        token_ids += chosen
    return None


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


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("choice", [AUTO, REQUIRED], ids=["auto", "required"])
@pytest.mark.parametrize("parallel", [True, False])
def test_what_a_grammar_lets_through_can_be_read(
    name: str, choice: ToolChoice, parallel: bool, vocabulary: Vocabulary
) -> None:
    enforced = Enforced(name, vocabulary, [STRICT, NOW, OTHER], choice, parallel=parallel)
    chooser = random.Random(7)
    num_ended = num_calls = 0
    for _ in range(12):
        answer = _walk(enforced, chooser)
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


@pytest.mark.parametrize("keyword", ["required", "properties"])
def test_a_schema_that_is_none_is_refused(keyword: str, vocabulary: Vocabulary) -> None:
    broken = ToolDefinition(name="f", path="tools.f", parameters={keyword: 7})
    with pytest.raises(UnsupportedSchemaError, match="properties an object"):
        Enforced("qwen_coder", vocabulary, [broken], REQUIRED)


@pytest.mark.parametrize("key", ["Straße 🙂", 'a"b', "a\\b", "a/b#c%d~e", "a\tb", "\x7f", "\u2028"])
def test_any_key_and_value_can_be_enforced(key: str, vocabulary: Vocabulary) -> None:
    properties = {key: {"type": "integer"}, "e": {"enum": [key]}}
    strict = tool("f", properties, required=list(properties), strict=True)
    enforced = Enforced("qwen_coder", vocabulary, [strict], REQUIRED)
    answer = written("qwen_coder", ("f", {key: 3, "e": key}))
    assert enforced.accepts(answer)
    ((_, arguments),) = read(FORMATS["qwen_coder"], answer, [strict])
    assert json.loads(arguments) == {key: 3, "e": key}


@pytest.mark.parametrize("key", ["", "a>b", "<a", "a\nb", " a", "a" * 301])
def test_keys_that_no_tag_can_hold(key: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(UnsupportedSchemaError):
        Enforced("qwen_coder", vocabulary, [tool("f", {key: {}}, strict=True)], REQUIRED)
    loose = Enforced("qwen_coder", vocabulary, [tool("f", {key: {}})], REQUIRED)
    assert loose.accepts(written("qwen_coder", ("f", {})))
