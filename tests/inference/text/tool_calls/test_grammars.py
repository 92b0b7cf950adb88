"""What the grammars let through and what not, by llguidance itself; and all of it can be read."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from llguidance import LLMatcher, grammar_from

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.errors import UnsupportedSchemaError
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS, Call, merged, read, tool
from tests.inference.text.tool_calls.calls import written as plainly_written
from tests.inference.text.tool_calls.conftest import END_TOKEN_ID, MARKERS, Vocabulary

MAX_STEPS = 300
AUTO, REQUIRED = ToolChoice(), ToolChoice(mode="required")


class Enforced:
    def __init__(
        self,
        name: str,
        vocabulary: Vocabulary,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool = True,
    ) -> None:
        form = FORMATS[name]
        marker_ids = form.marker_ids(vocabulary.text)
        text = form.grammar(tools, choice, parallel=parallel, marker_ids=marker_ids)
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


PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"enum": ["C", "F"]},
    "exact": {"type": ["boolean", "null"]},
    "near": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
}
PLACE = {
    "type": "object",
    "properties": {"lat": {"type": "number"}, "in": {"$ref": "#/$defs/Place"}},
    "required": ["lat"],
    "additionalProperties": False,
}
STRICT, LOOSE = (
    tool("weather", PROPERTIES, ["city"], strict=is_strict, **{"$defs": {"Place": PLACE}})
    for is_strict in (True, False)
)
NOW = ToolDefinition(name="now", path="tools.1", strict=True)
OTHER = tool("other", {"a": {"type": "integer"}})
GOOD: Call = (
    "weather",
    {"city": "Paris", "days": 3, "unit": "C", "near": [{"lat": 1.5, "in": {"lat": 2}}]},
)
NOW_CALL: Call = ("now", {})
BAD: list[Call] = [
    ("weather", {"days": 3}),
    ("weather", {"city": "Paris", "days": "x"}),
    ("weather", {"city": "Paris", "unit": "K"}),
    ("weather", {"city": "Paris", "near": [{"in": {"lat": 1}}]}),
    ("weather", {"city": "Paris", "more": 1}),
    ("now", {"a": 1}),
    ("nobody", {}),
]
MANY = [name for name in FORMATS if name != "harmony"]
BESIDE_TEXT = [name for name in MANY if name not in ("plain", "llama3")]


def written(name: str, *calls: Call) -> str:
    return plainly_written(name, *calls).replace("commentary to=", "commentary to=functions.")


@each_case("name", FORMATS)
def test_a_forced_call_follows_its_schema(name: str, vocabulary: Vocabulary) -> None:
    for choice in (AUTO, ToolChoice(mode="none")):  # nothing to enforce
        form = FORMATS[name]
        assert form.grammar([LOOSE], choice, parallel=True, marker_ids={}) is None
    several = written(name, GOOD, NOW_CALL, GOOD)
    for first in (STRICT, LOOSE):
        enforced = Enforced(name, vocabulary, [first, NOW], REQUIRED)
        for allowed in (GOOD, NOW_CALL):
            assert enforced.accepts(written(name, allowed))
        for call in BAD:
            assert not enforced.accepts(written(name, call)), call
        for text in ("", "I do not want to.", f"{written(name, NOW_CALL)} And then."):
            assert not enforced.accepts(text), text
        assert enforced.accepts(several) is (name in MANY)
    one = Enforced(name, vocabulary, [STRICT, NOW], REQUIRED, parallel=False)
    assert one.accepts(written(name, NOW_CALL))
    for text in ("", several, written(name, NOW_CALL, NOW_CALL)):
        assert not one.accepts(text)
    named = ToolChoice(mode="required", name="now")
    for parallel in (True, False):
        enforced = Enforced(name, vocabulary, [STRICT, NOW], named, parallel=parallel)
        assert enforced.accepts(written(name, NOW_CALL))
        assert not enforced.accepts(written(name, GOOD))


@each_case("name", [*BESIDE_TEXT, "llama3"])
def test_strict_tools_and_one_call_beside_free_text(name: str, vocabulary: Vocabulary) -> None:
    enforced = Enforced(name, vocabulary, [STRICT, NOW, OTHER], AUTO)
    for text in ("", 'Text, <b>, {"a": [1]}, [x]\n\n and é🙂.\n'):
        assert enforced.accepts(text), text
    before = "" if name == "llama3" else "I look.\n"
    assert enforced.accepts(before + written(name, GOOD, NOW_CALL))
    assert enforced.accepts(written(name, ("other", {"b": "x"}))), "it is not strict"
    for call in BAD:
        assert not enforced.accepts(before + written(name, call)), call
        assert not enforced.accepts(written(name, GOOD, call)), call
    enforced = Enforced(name, vocabulary, [LOOSE, OTHER], AUTO, parallel=False)
    assert enforced.accepts("No call.")
    assert enforced.accepts(written(name, ("other", {"b": "x"})))
    assert not enforced.accepts(written(name, ("other", {}), ("other", {})))


@each_case("name", ["hermes", "qwen_coder", "mistral", "mistral_named"])
def test_a_marker_that_is_spelled_out_is_enforced(name: str, vocabulary: Vocabulary) -> None:
    enforced = Enforced(name, vocabulary, [STRICT, NOW], AUTO)
    call = written(name, BAD[0])
    marker = call[: 12 if call.startswith("[") else 11]
    spelled = [token_id for character in marker for token_id in vocabulary.encode(character)]
    assert not enforced.accepts(spelled)
    assert not enforced.accepts([*spelled, *vocabulary.encode(call.removeprefix(marker))])


def test_calls_are_enforced_wherever_they_are_read(vocabulary: Vocabulary) -> None:
    """Qwen's without their outer tags, Llama's on any line and behind its tag."""
    enforced = Enforced("qwen_coder", vocabulary, [STRICT, NOW], AUTO)
    for call, is_good in ((GOOD, True), (BAD[0], False)):
        inner = written("qwen_coder", call).removeprefix("<tool_call>\n")
        assert enforced.accepts("I look.\n" + inner.removesuffix("\n</tool_call>")) is is_good
    enforced = Enforced("llama3", vocabulary, [STRICT, NOW], AUTO)
    bad, good = written("llama3", BAD[0]), written("llama3", GOOD)
    for before in ("\n", "I look.\n ", "<|python_tag|>", "I look. <|python_tag|>"):
        assert not enforced.accepts(before + bad)
    assert not enforced.accepts("[weather(days=3)]")
    assert enforced.accepts(f"I look: {bad}")
    has_tag = len(vocabulary.encode("<|python_tag|>")) == 1
    assert enforced.accepts(f"I look. <|python_tag|>{good}") is has_tag


def test_text_of_harmony_is_in_its_channel(vocabulary: Vocabulary) -> None:
    enforced = Enforced("harmony", vocabulary, [STRICT, NOW], AUTO)
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    assert enforced.accepts("<|channel|>final<|message|>Yes.")
    assert enforced.accepts(f"{preamble}{written('harmony', GOOD)}")
    assert not enforced.accepts(f"{preamble}{written('harmony', BAD[0])}")
    assert not enforced.accepts("Yes.")


@each_case("keyword", ["pattern", "minLength"])
@each_case("name", ["qwen_coder", "glm", "gemma_4", "dsml", "minimax", "seed"])
def test_what_tags_cannot_hold_is_refused(name: str, keyword: str, vocabulary: Vocabulary) -> None:
    held = tool("f", {"a": {"type": "string", keyword: 3 if keyword == "minLength" else "^x"}})
    with pytest.raises(UnsupportedSchemaError, match=keyword) as caught:
        Enforced(name, vocabulary, [held], REQUIRED)
    assert caught.value.param == f"tools.f.properties.a.{keyword}"
    assert caught.value.tool is held


def test_values_of_tags_follow_their_schema(vocabulary: Vocabulary) -> None:
    """References start at the tool's schema; a value of two types shows which it is."""
    properties = {
        "size": {"type": "integer", "maximum": 9},
        "depth": {"allOf": [{"$ref": "#/properties/size"}]},
        "children": {"type": "array", "items": {"$ref": "#"}},
        "never": False,
    }
    nested = tool("f", properties, required=["size"], strict=True)
    either = tool("f", {"a": {"type": ["string", "integer"]}, "b": {"enum": ["x", 1]}}, strict=True)
    child = {"size": 1, "children": []}
    for name, offered, arguments, is_accepted in (
        ("qwen_coder", nested, {"size": 3}, True),
        ("qwen_coder", nested, {"size": 3, "depth": 2, "children": [child]}, True),
        ("qwen_coder", nested, {"size": 3, "depth": 10}, False),
        ("qwen_coder", nested, {"size": 3, "children": [[]]}, False),
        ("qwen_coder", nested, {"size": 3, "never": 1}, False),
        ("qwen_coder", nested, {}, False),
        *(
            ("dsml", either, arguments, True)
            for arguments in ({"a": "x"}, {"a": 1}, {"a": "1", "b": "x"}, {"b": 1})
        ),
        ("dsml", either, {"b": "1"}, False),
    ):
        enforced = Enforced(name, vocabulary, [offered], REQUIRED)
        answer = written(name, ("f", arguments))
        assert enforced.accepts(answer) is is_accepted, arguments
        if is_accepted:
            ((_, parsed),) = read(FORMATS[name], answer, [offered])
            assert json.loads(parsed) == arguments


def test_any_key_and_value_that_a_tag_can_hold_is_enforced(vocabulary: Vocabulary) -> None:
    for key in ("Straße 🙂", 'a"b', "a\\b", "a/b#c%d~e", "a\tb", "\x7f", "\u2028"):
        properties = {key: {"type": "integer"}, "e": {"enum": [key]}}
        strict = tool("f", properties, required=list(properties), strict=True)
        answer = written("qwen_coder", ("f", {key: 3, "e": key}))
        assert Enforced("qwen_coder", vocabulary, [strict], REQUIRED).accepts(answer), key
        ((_, arguments),) = read(FORMATS["qwen_coder"], answer, [strict])
        assert json.loads(arguments) == {key: 3, "e": key}
    for key in ("", "a>b", "<a", "a\nb", " a", "a" * 301):
        with pytest.raises(UnsupportedSchemaError):
            Enforced("qwen_coder", vocabulary, [tool("f", {key: {}}, strict=True)], REQUIRED)
        loose = Enforced("qwen_coder", vocabulary, [tool("f", {key: {}})], REQUIRED)
        assert loose.accepts(written("qwen_coder", ("f", {}))), key
    for keyword in ("required", "properties"):
        broken = ToolDefinition(name="f", path="tools.f", parameters={keyword: 7})
        with pytest.raises(UnsupportedSchemaError, match="properties an object"):
            Enforced("qwen_coder", vocabulary, [broken], REQUIRED)


SNIPPETS = [
    *('"', "}", "]", ",", "</parameter>", "</parameter>\n", "<function=", "1", ": ", ":", "{"),
    *('{"name"', "\n", "x", "city", *MARKERS),
]


def random_answer(enforced: Enforced, chooser: random.Random) -> str | None:
    """Under the mask, and where it may with a snippet; ``None`` for one that does not end."""
    matcher, vocabulary, token_ids = enforced.start(), enforced.vocabulary, list[int]()
    for _ in range(MAX_STEPS):
        if matcher.is_stopped() or (matcher.is_accepting() and chooser.random() < 0.2):
            return vocabulary.decode(token_ids)
        chosen = vocabulary.encode(chooser.choice(SNIPPETS))
        if chooser.random() < 0.5 or matcher.validate_tokens(chosen) < len(chosen):
            bias = matcher.compute_logit_bias()
            chosen = [chooser.choice([i for i, allowed in enumerate(bias) if allowed])]
        if chosen == [END_TOKEN_ID]:
            return vocabulary.decode(token_ids)
        assert matcher.consume_tokens(chosen), matcher.get_error()
        token_ids += chosen
    return None


@pytest.mark.slow
@each_case("name", MANY)
@each_case("choice", [AUTO, REQUIRED])
@each_case("parallel", [True, False])
def test_what_a_grammar_lets_through_can_be_read(
    name: str, choice: ToolChoice, parallel: bool, vocabulary: Vocabulary
) -> None:
    if name == "plain" and choice is AUTO:
        return
    tools, chooser = [STRICT, NOW, OTHER], random.Random(7)
    enforced = Enforced(name, vocabulary, tools, choice, parallel=parallel)
    answers = [random_answer(enforced, chooser) for _ in range(12)]
    assert any(answer is not None for answer in answers)
    for answer in answers:
        if answer is None or re.search(r"[0-9][eE]\+?[0-9]{3}", answer):
            continue  # a call with a number that no float can hold is text
        parser = FORMATS[name].parser(tools)
        parser.streams_arguments = choice is not AUTO
        parts = merged([*parser.feed(answer), *parser.flush()])
        calls = [part for part in parts if not isinstance(part, str)]
        for called, text in calls:
            arguments = json.loads(text)
            assert called != "weather" or isinstance(arguments["city"], str), answer
            assert called == "other" or arguments.keys() <= PROPERTIES.keys(), answer
            assert isinstance(arguments.get("days", 1), int) or called == "other", answer
        assert parallel or len(calls) <= 1, answer
        assert choice is AUTO or parts == calls != [], answer
