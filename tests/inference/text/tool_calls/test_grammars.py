"""What the grammars let through and what not, by llguidance itself."""

from __future__ import annotations

from typing import Any

from inference.protocol.generation import ToolChoice
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS
from tests.inference.text.tool_calls.conftest import Vocabulary
from tests.inference.text.tool_calls.enforced import (
    AUTO,
    LOOSE,
    NAMED,
    NOW,
    OTHER,
    REQUIRED,
    STRICT,
    Enforced,
    tagged_call,
    written,
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


@each_case("name", FORMATS)
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

    @each_case("call", BAD_CALLS)
    def test_schemas_hold(
        self, name: str, vocabulary: Vocabulary, call: tuple[str, dict[str, Any]]
    ) -> None:
        for first in (STRICT, LOOSE):
            enforced = Enforced(name, vocabulary, [first, NOW], REQUIRED)
            assert not enforced.accepts(written(name, call))


@each_case("name", FORMATS)
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


@each_case("name", ["hermes", "qwen_coder", "mistral", "mistral_named"])
def test_a_call_behind_text_is_enforced(name: str, vocabulary: Vocabulary) -> None:
    enforced = Enforced(name, vocabulary, [STRICT, NOW], AUTO)
    assert enforced.accepts(f"I look.\n{written(name, GOOD_CALL)}")
    assert not enforced.accepts(f"I look.\n{written(name, BAD_CALLS[0])}")


@each_case("name", ["hermes", "qwen_coder", "mistral", "mistral_named"])
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
    assert enforced.accepts(f"I look.\n{tagged_call(*GOOD_CALL)}")
    assert not enforced.accepts(f"I look.\n{tagged_call(*BAD_CALLS[0])}")


def test_llama_calls_are_enforced_wherever_they_are_read(vocabulary: Vocabulary) -> None:
    enforced = Enforced("llama3", vocabulary, [STRICT, NOW], AUTO)
    bad, good = written("llama3", BAD_CALLS[0]), written("llama3", GOOD_CALL)
    for before in ("\n", "I look.\n ", "<|python_tag|>", "I look. <|python_tag|>"):
        assert not enforced.accepts(before + bad)
    assert not enforced.accepts("[weather(days=3)]")
    assert enforced.accepts(f"I look: {bad}")
    has_tag = len(vocabulary.encode("<|python_tag|>")) == 1
    assert enforced.accepts(f"I look. <|python_tag|>{good}") is has_tag
