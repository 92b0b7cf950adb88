"""gpt-oss' channels: thinking, text and calls, token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from inference.engine.logits_processors import ThinkingBudget
from inference.protocol.engine import ThinkingLimit
from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.choice_text import ChoiceText, Piece, ThoughtPart
from inference.text.grammars import Thinking, answer_grammar, calls_part, json_part
from inference.text.reasoning import ReasoningMarkers, TokenKind, find_markers, opens_block
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import CallArguments, CallStarted, TextPart
from inference.text.tool_calls.json_formats import HarmonyFormat
from tests.cases import each_case
from tests.inference.text.marked_calls import pieces_of

TEMPLATE = "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}{{ tools }}"
SPECIAL = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>"]
THOUGHT = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
OPENS = "<|channel|>analysis<|message|>"
TOOL = ToolDefinition(name="f", path="tools.0", parameters={"properties": {"a": {}}})
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
SEEN = ThoughtPart("Let me see.", OPENS, "<|end|>")
CALLED = [CallStarted("f"), CallArguments('{"a":1}')]


@pytest.fixture(scope="module")
def definition(byte_level_dir: Path) -> str:
    backend = tokenizers.Tokenizer.from_file(str(byte_level_dir / "tokenizer.json"))
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens(["analysis"])
    return backend.to_str()


@pytest.fixture(scope="module")
def tokenizer(definition: str) -> Tokenizer:
    return Tokenizer(definition, {})


@pytest.fixture(scope="module")
def markers(tokenizer: Tokenizer) -> ReasoningMarkers:
    found = find_markers(tokenizer, TEMPLATE)
    assert found is not None
    return found


def _choice(
    tokenizer: Tokenizer, markers: ReasoningMarkers, *, calls: bool = True, **given: bool
) -> ChoiceText:
    parser = HarmonyFormat().parser([TOOL]) if calls else None
    return ChoiceText(tokenizer, markers=markers, tool_calls=parser, **given)


@each_case(
    ("text", "given", "pieces"),
    [
        (f"{THOUGHT}{FINAL}Yes.", {}, [SEEN, TextPart("Yes.")]),
        (f"{FINAL}Yes.", {}, [TextPart("Yes.")]),
        (f"{THOUGHT}{CALL}", {}, [SEEN, *CALLED]),
        (f"{CALL}<|call|>", {}, CALLED),
        (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', {}, CALLED),
        (f"{THOUGHT}{CALL.replace('functions.', '')}", {}, [SEEN, *CALLED]),
        (f"{PREAMBLE}{CALL}", {}, [TextPart("I look."), *CALLED]),
        (f"{PREAMBLE}{FINAL}Yes.", {}, [TextPart("I look.\n\nYes.")]),
        (f"{THOUGHT}{THOUGHT}{FINAL}Yes.", {}, [SEEN, SEEN, TextPart("Yes.")]),
        (f"{OPENS}Let", {}, [ThoughtPart("Let", OPENS, None, "<|end|>")]),
        (f"{THOUGHT}<|channel|>fin", {}, [SEEN]),
        ("Yes.", {}, [TextPart("Yes.")]),
        ("to be or not", {}, [TextPart("to be or not")]),
        (CALL, {"calls": False}, [TextPart('{"a": 1}')]),
        (" more", {"continues_text": True}, [TextPart(" more")]),
    ],
)
def test_an_answer_is_taken_apart(
    tokenizer: Tokenizer,
    markers: ReasoningMarkers,
    text: str,
    given: dict[str, bool],
    pieces: list[Piece],
) -> None:
    assert pieces_of(_choice(tokenizer, markers, **given), text) == pieces


def test_headers_and_thoughts_are_no_answer(
    tokenizer: Tokenizer, markers: ReasoningMarkers
) -> None:
    choice = ChoiceText(tokenizer, markers=markers)
    token_ids = tokenizer.encode(f"{THOUGHT}{FINAL}Yes", add_special_tokens=False)
    kinds = [choice.feed(token_id)[0] for token_id in token_ids]
    num_answer = len(tokenizer.encode("Yes", add_special_tokens=False))
    assert kinds[-num_answer:] == [TokenKind.ANSWER] * num_answer
    assert TokenKind.ANSWER not in kinds[:-num_answer]
    assert choice.num_thought_tokens == kinds.count(TokenKind.THOUGHT) > 0

    for template in ("{{ messages }}", None):
        assert find_markers(tokenizer, template) is None
    token_ids = tokenizer.encode("<|start|>assistant", add_special_tokens=False)
    assert not opens_block(token_ids, markers, tokenizer)


def test_a_budget_counts_thoughts_alone(tokenizer: Tokenizer, markers: ReasoningMarkers) -> None:
    budget = ThinkingBudget(
        ThinkingLimit(
            max_tokens=4,
            end_token_id=markers.end_token_id,
            start_token_id=markers.start_token_id,
            follows_token_id=markers.follows_token_id,
        )
    )
    text = f"{FINAL}one analysis of many words, none of them a thought"
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        budget.advance(token_id)
        assert budget.forced_token is None
    for token_id in tokenizer.encode(f"{OPENS}one two three", add_special_tokens=False):
        budget.advance(token_id)
    assert budget.forced_token == markers.end_token_id


def test_grammars_of_channels(
    definition: str, tokenizer: Tokenizer, markers: ReasoningMarkers
) -> None:
    form, choice = HarmonyFormat(), ToolChoice(mode="required")
    marker_ids = form.marker_ids(tokenizer)
    lark = form.grammar([TOOL], choice, parallel=True, marker_ids=marker_ids)
    assert lark is not None
    theirs = LLTokenizer(definition, n_vocab=tokenizer.vocab_size, eos_token=[2])
    grammar = answer_grammar(
        [calls_part(lark), json_part({"type": "integer"})],
        thinking=Thinking.POSSIBLE,
        markers=markers,
        end_token_ids=[2],
        num_calls=1,
    )

    def accepts(text: str) -> bool:
        matcher = LLMatcher(theirs, grammar.text, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = tokenizer.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    for before in ("", THOUGHT):
        assert accepts(before + CALL)
        assert accepts(f"{before}{FINAL}7")
        assert not accepts(f"{before}{FINAL}seven")
        assert not accepts(f"{before}7")
    assert not accepts(THOUGHT)
