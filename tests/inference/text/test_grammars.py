"""Grammars as llguidance follows them over a real tokenizer: what each allows, and after which
thinking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from inference.protocol.engine import Grammar
from inference.protocol.generation import OutputFormat, ToolDefinition
from inference.text.errors import GrammarRefusedError
from inference.text.grammars import (
    Thinking,
    answer_grammar,
    bare_call_part,
    json_part,
    text_part,
)
from inference.text.reasoning import ReasoningMarkers
from inference.text.schema_check import find_problem
from inference.text.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.text.marked_calls import MarkedCalls

END = 2
TOOLS = [ToolDefinition(name="f", path="t"), ToolDefinition(name="g", path="t")]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ROME = '{"city": "Rome"}'
CALL = '<call>f {"a": 1}</call>'

Accepts = Callable[[Grammar, str], bool]


@pytest.fixture(scope="module")
def theirs(thinking_dir: Path, tokenizer: Tokenizer) -> LLTokenizer:
    definition = (thinking_dir / "tokenizer.json").read_text()
    return LLTokenizer(definition, n_vocab=tokenizer.vocab_size, eos_token=[END])


@pytest.fixture(scope="module")
def accepts(theirs: LLTokenizer, tokenizer: Tokenizer) -> Accepts:
    """Whether the engine would let the text be written, and end there."""

    def check(grammar: Grammar, text: str) -> bool:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if grammar.starts_after_token_id is not None:
            if grammar.starts_after_token_id not in ids:
                return False
            ids = ids[ids.index(grammar.starts_after_token_id) + 1 :]
        matcher = LLMatcher(theirs, grammar.text, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return check


def _calls(tokenizer: Tokenizer, *, parallel: bool = True) -> dict[str, Any]:
    opens, closes = MarkedCalls().marker_ids(tokenizer).values()
    return {
        "lark_grammar": f"start: call{'+' if parallel else ''}\n"
        f'call: <[{opens}]> ("f" | "g") " " arguments <[{closes}]>\n'
        'arguments: %json {"type": "object"}\n'
    }


POINT = {"type": "object", "properties": {"id": {"$ref": "#/$defs/n"}}, "required": ["id"]}
POINT |= {"$id": "point", "$defs": {"n": {"type": "integer"}}}
STRICT = ToolDefinition(name="f", path="t", parameters=POINT, strict=True)
NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}


def test_json_and_bare_calls(accepts: Accepts) -> None:
    objects = ("{}", '{"a": [1, {"b": null}]}', '{\n  "a": 1\n}', '{"a":"🙂"}')
    others = ("", "[1]", '"a"', "{", '{"a": 1} so', '{\n\n\n"a": 1}', "yes")
    bare = [*(bare_call_part(tool) for tool in (STRICT, TOOLS[1])), json_part(SCHEMA)]
    calls = ('{"name": "f", "parameters": {"id": 1}}', '{"name": "g", "parameters": {"any": []}}')
    bad = ('{"name": "f", "parameters": {"id": "1"}}', '{"name": "h", "parameters": {}}')
    for parts, allowed, not_allowed in (
        ([json_part(None)], objects, others),
        ([json_part(SCHEMA)], (ROME,), ('{"city": 1}', '{"city": "Rome", "b": 1}', "{}")),
        ([json_part(True)], ("[1]",), ()),
        ([json_part(NODE)], ('{"next": {"next": {}}}',), ('{"next": {"other": {}}}',)),
        (bare, (ROME, *calls), bad),
    ):
        grammar = answer_grammar(parts)
        for text in (*allowed, *not_allowed):
            assert accepts(grammar, text) is (text in allowed), text


def test_texts_that_are_not_json(accepts: Accepts) -> None:
    for demand, allowed, not_allowed in (
        ({"regex": r"[a-z]+/\d\n"}, "ab/1\n", "ab/1"),
        ({"choices": ["yes", 'no "way"', "yes"]}, 'no "way"', "yes no"),
        ({"grammar": 'start: "a" | "b" "c"'}, "bc", "b"),
        ({"grammar": 'root ::= "a" [0-9]+'}, "a12", "a"),
    ):
        part = text_part(OutputFormat(path="p", **demand))
        for grammar in (answer_grammar([part]), answer_grammar([part, part])):
            assert accepts(grammar, allowed), demand
            assert not accepts(grammar, not_allowed), demand


def test_a_call_or_the_json(
    accepts: Accepts, tokenizer: Tokenizer, markers: ReasoningMarkers
) -> None:
    """Every grammar can be read and checked without the tokenizer, or is refused."""
    grammar = answer_grammar([_calls(tokenizer), json_part(SCHEMA)])
    assert accepts(grammar, ROME)
    assert accepts(grammar, CALL)
    assert accepts(grammar, CALL + CALL)
    for text in ("yes", CALL + ROME, ROME + CALL, "<call>h {}</call>"):
        assert not accepts(grammar, text), text
    parts = [_calls(tokenizer), json_part(SCHEMA)]
    for thinking in Thinking:
        grammar = answer_grammar(parts, thinking=thinking, markers=markers, end_token_ids=[END])
        assert find_problem(grammar.text) is None
    assert find_problem('{"grammars": [{"lark_grammar": "start: ("}]}') is not None
    with pytest.raises(GrammarRefusedError, match="cannot be read"):
        text_part(OutputFormat(path="p", grammar="root ::= " + "(" * 5000))


@each_case("with_calls", [False, True])
def test_a_block_that_the_model_may_open(
    accepts: Accepts, tokenizer: Tokenizer, markers: ReasoningMarkers, with_calls: bool
) -> None:
    parts = [*([_calls(tokenizer)] if with_calls else []), json_part(SCHEMA)]
    given = {"markers": markers, "end_token_ids": [END]}
    grammar = answer_grammar(parts, thinking=Thinking.POSSIBLE, **given)
    assert grammar.starts_after_token_id is None
    for text in (ROME, f"<think>🙂 {{so}} <call></think>{ROME}", f"<think></think>\n\n{ROME}"):
        assert accepts(grammar, text), text
    assert accepts(grammar, f"<think>so</think>\n{CALL}") is with_calls
    for text in ("yes", f"yes{ROME}", "<think>so", "<think>so</think>yes", f"so</think>{ROME}"):
        assert not accepts(grammar, text), text
    assert not accepts(grammar, f"<think>so<|im_end|></think>{ROME}"), "it may not end in there"


def test_a_block_that_the_prompt_opened_or_that_closes_in_the_middle_of_a_character(
    accepts: Accepts, theirs: LLTokenizer, tokenizer: Tokenizer, markers: ReasoningMarkers
) -> None:
    """A thinking limit closes it wherever it is."""
    grammar = answer_grammar([json_part(None)], thinking=Thinking.POSSIBLE, markers=markers)
    ids = [markers.start_token_id, *tokenizer.encode("🙂", add_special_tokens=False)[:1]]
    matcher = LLMatcher(theirs, grammar.text)
    assert matcher.try_consume_tokens([*ids, markers.end_token_id]) == 3
    grammar = answer_grammar([json_part(SCHEMA)], thinking=Thinking.OPENED, markers=markers)
    assert grammar.starts_after_token_id == markers.end_token_id
    for text in (f"so</think>{ROME}", f"so</think>\n\n{ROME}", f"</think>{ROME}"):
        assert accepts(grammar, text), text
    assert not accepts(grammar, "so</think>yes")
