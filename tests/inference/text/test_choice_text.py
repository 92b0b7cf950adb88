"""However the tokens come, an answer is taken apart into the same thought, text and calls; markers
that are one token each, blocks that a prompt opens, and the channels of gpt-oss."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from inference.engine.logits_processors import ThinkingBudget
from inference.protocol.engine import ThinkingLimit
from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text import reasoning
from inference.text.choice_text import ChoiceText, Piece, ThoughtPart
from inference.text.grammars import Thinking, answer_grammar, json_part
from inference.text.reasoning import TokenKind
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import CallArguments, CallStarted, TextPart
from inference.text.tool_calls.json_formats import HarmonyFormat
from tests.inference.text.marked_calls import MarkedCalls, pieces_of


def _choice(tokenizer: Tokenizer, *, calls: bool = False, **kwargs: object) -> ChoiceText:
    form = MarkedCalls()
    return ChoiceText(
        tokenizer,
        markers=reasoning.find_markers(tokenizer, None),
        tool_calls=form.parser([]) if calls else None,
        shown_token_ids=form.shown_token_ids(tokenizer) if calls else frozenset(),
        **kwargs,  # type: ignore[arg-type]
    )


def thought(text: str) -> ThoughtPart:
    return ThoughtPart(text, "<think>", "</think>")


THOUGHT = thought("so")
STOPS = ["END", "\n\n"]
CALLED = [CallStarted("f"), CallArguments('{"a":1}')]
CALLS = '<think><call>no {}</call></think>\nfirst<call>f {"a": 1}</call><call>f {"a": 1}</call>'


def test_thinking_and_calls_are_taken_out(tokenizer: Tokenizer) -> None:
    for text, given, pieces in (
        ("Straße", {}, [TextPart("Straße")]),
        ("\n\nStraße", {}, [TextPart("\n\nStraße")]),
        ("\n\n", {}, [TextPart("\n\n")]),
        ("<think>so</think>yes", {}, [THOUGHT, TextPart("yes")]),
        ("\n<think>\nso\n</think>\n\n yes\n", {}, [thought("so\n"), TextPart("yes\n")]),
        ("<think>\n\n</think>\n\n", {}, [thought("")]),
        ("<think>for ever", {}, [ThoughtPart("for ever", "<think>", None, "</think>")]),
        ("<think>", {}, [ThoughtPart("", "<think>", None, "</think>")]),
        (
            "<think></think><think>so</think>a</think>",
            {},
            [thought(""), THOUGHT, TextPart("a</think>")],
        ),
        ("<think>s<think>o</think>yes", {}, [thought("s<think>o"), TextPart("yes")]),
        ("a <think>b</think>", {}, [TextPart("a <think>b</think>")]),
        ("\nso</think>\n\nyes", {"starts_thinking": True}, [THOUGHT, TextPart("yes")]),
        (
            "<think>END</think>\n\na END b",
            {"stop": ["END", "\n\n"]},
            [thought("END"), TextPart("a ")],
        ),
        (CALLS, {"calls": True}, [thought("no {}"), TextPart("first"), *CALLED, *CALLED]),
        ("<call>f</call>", {}, [TextPart("f")]),
        ("a<call>f END", {"calls": True, "stop": ["END"]}, [TextPart("a<call>f ")]),
    ):
        choice = _choice(tokenizer, **given)
        assert pieces_of(choice, text) == pieces
        assert choice.stop == ("END" if "stop" in given else None)


def test_open_blocks_and_their_markers(
    tokenizer: Tokenizer, markers: reasoning.ReasoningMarkers
) -> None:
    """A marker is reported at once, and not counted."""
    start, *thought = tokenizer.encode("<think>so it is", add_special_tokens=False)
    assert _choice(tokenizer).feed(start)[1] == [ThoughtPart("", "<think>", None)]
    for end in ("</think>yes", ""):
        pieces_of(choice := _choice(tokenizer), f"<think>so it is{end}")
        assert choice.num_thought_tokens == len(thought)
    for prompt, is_open in (
        *((f"Hi<think>{space}", True) for space in ("", "\n", "\n\n")),
        *((one, False) for one in ("Hi<think>\n\n</think>\n\n", "Hi<think>so", "Hi", "")),
    ):
        token_ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert reasoning.opens_block(token_ids, markers, tokenizer) is is_open, prompt
        assert not reasoning.opens_block(token_ids, None, tokenizer)


def test_a_label_behind_the_marker_is_no_thought(byte_level_dir: Path) -> None:
    markers = ["<|channel>", "<channel|>"]
    tokenizer = _with_tokens(byte_level_dir, special=True, tokens=markers)
    for written, thought in (
        *(("thought\nso", "so"), ("thoughtful", "ful"), ("tho", "tho")),
        *(("thought", ""), ("so", "so")),
    ):
        expected = [ThoughtPart(thought, *markers), TextPart("yes")]
        assert pieces_of(_choice(tokenizer), f"<|channel>{written}<channel|>yes") == expected


def _with_tokens(directory: Path, *, special: bool, tokens: list[str]) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    add = backend.add_special_tokens if special else backend.add_tokens
    add(tokens)
    return Tokenizer(backend.to_str(), {})


def test_known_pairs_of_one_token_each(byte_level_dir: Path, sentencepiece_dir: Path) -> None:
    for pair in reasoning.MARKER_PAIRS:
        for special in (True, False):
            tokenizer = _with_tokens(byte_level_dir, special=special, tokens=list(pair))
            found = reasoning.find_markers(tokenizer, None)
            assert found is not None and (found.opens, found.closes) == pair
            assert found.start_token_id != found.end_token_id
    half = _with_tokens(byte_level_dir, special=True, tokens=["<think>"])
    for tokenizer in (Tokenizer.load(byte_level_dir), Tokenizer.load(sentencepiece_dir), half):
        assert reasoning.find_markers(tokenizer, "<think></think>") is None
    both = ["<think>", "</think>", "[THINK]", "[/THINK]"]
    tokenizer = _with_tokens(byte_level_dir, special=True, tokens=both)
    for template, opens in (("{{ '[THINK]' }}{{ '[/THINK]' }}", "[THINK]"), ("none", "<think>")):
        found = reasoning.find_markers(tokenizer, template)
        assert found is not None and found.opens == opens


# The channels of gpt-oss.
HARMONY = "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}{{ tools }}"
SPECIAL = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>"]
OF_THOUGHT = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
OPENS = "<|channel|>analysis<|message|>"
TOOL = ToolDefinition(name="f", path="tools.0", parameters={"properties": {"a": {}}})
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
SEEN = ThoughtPart("Let me see.", OPENS, "<|end|>")
HARMONY_ROWS: list[tuple[str, dict[str, bool], list[Piece]]] = [
    (f"{OF_THOUGHT}{FINAL}Yes.", {}, [SEEN, TextPart("Yes.")]),
    (f"{FINAL}Yes.", {}, [TextPart("Yes.")]),
    (f"{OF_THOUGHT}{CALL}", {}, [SEEN, *CALLED]),
    (f"{CALL}<|call|>", {}, CALLED),
    (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', {}, CALLED),
    (f"{OF_THOUGHT}{CALL.replace('functions.', '')}", {}, [SEEN, *CALLED]),
    (f"{PREAMBLE}{CALL}", {}, [TextPart("I look."), *CALLED]),
    (f"{PREAMBLE}{FINAL}Yes.", {}, [TextPart("I look.\n\nYes.")]),
    (f"{OF_THOUGHT}{OF_THOUGHT}{FINAL}Yes.", {}, [SEEN, SEEN, TextPart("Yes.")]),
    (f"{OPENS}Let", {}, [ThoughtPart("Let", OPENS, None, "<|end|>")]),
    (f"{OF_THOUGHT}<|channel|>fin", {}, [SEEN]),
    ("Yes.", {}, [TextPart("Yes.")]),
    ("to be or not", {}, [TextPart("to be or not")]),
    (CALL, {"calls": False}, [TextPart('{"a": 1}')]),
    (" more", {"continues_text": True}, [TextPart(" more")]),
]


@pytest.fixture(scope="module")
def definition(byte_level_dir: Path) -> str:
    backend = tokenizers.Tokenizer.from_file(str(byte_level_dir / "tokenizer.json"))
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens(["analysis"])
    return backend.to_str()


@pytest.fixture(scope="module")
def harmony(definition: str) -> Tokenizer:
    return Tokenizer(definition, {})


@pytest.fixture(scope="module")
def channels(harmony: Tokenizer) -> reasoning.ReasoningMarkers:
    for template in ("{{ messages }}", None):
        assert reasoning.find_markers(harmony, template) is None
    found = reasoning.find_markers(harmony, HARMONY)
    assert found is not None
    return found


def test_an_answer_in_channels(harmony: Tokenizer, channels: reasoning.ReasoningMarkers) -> None:
    for text, options, pieces in HARMONY_ROWS:
        parser = HarmonyFormat().parser([TOOL]) if "calls" not in options else None
        continues = "continues_text" in options
        choice = ChoiceText(harmony, markers=channels, tool_calls=parser, continues_text=continues)
        assert pieces_of(choice, text) == pieces, text
    choice = ChoiceText(harmony, markers=channels)
    token_ids = harmony.encode(f"{OF_THOUGHT}{FINAL}Yes", add_special_tokens=False)
    kinds = [choice.feed(token_id)[0] for token_id in token_ids]
    num_answer = len(harmony.encode("Yes", add_special_tokens=False))
    assert kinds[-num_answer:] == [TokenKind.ANSWER] * num_answer
    assert TokenKind.ANSWER not in kinds[:-num_answer]
    assert choice.num_thought_tokens == kinds.count(TokenKind.THOUGHT) > 0
    token_ids = harmony.encode("<|start|>assistant", add_special_tokens=False)
    assert not reasoning.opens_block(token_ids, channels, harmony)


def test_a_budget_counts_thoughts_alone(
    harmony: Tokenizer, channels: reasoning.ReasoningMarkers
) -> None:
    budget = ThinkingBudget(
        ThinkingLimit(
            max_tokens=4,
            end_token_id=channels.end_token_id,
            start_token_id=channels.start_token_id,
            follows_token_id=channels.follows_token_id,
        )
    )
    text = f"{FINAL}one analysis of many words, none of them a thought"
    for token_id in harmony.encode(text, add_special_tokens=False):
        budget.advance(token_id)
        assert budget.forced_token is None
    for token_id in harmony.encode(f"{OPENS}one two three", add_special_tokens=False):
        budget.advance(token_id)
    assert budget.forced_token == channels.end_token_id


def test_grammars_of_channels(
    definition: str, harmony: Tokenizer, channels: reasoning.ReasoningMarkers
) -> None:
    form, choice = HarmonyFormat(), ToolChoice(mode="required")
    marker_ids = form.marker_ids(harmony)
    lark = form.grammar([TOOL], choice, parallel=True, marker_ids=marker_ids)
    assert lark is not None
    theirs = LLTokenizer(definition, n_vocab=harmony.vocab_size, eos_token=[2])
    grammar = answer_grammar(
        [{"lark_grammar": lark}, json_part({"type": "integer"})],
        thinking=Thinking.POSSIBLE,
        markers=channels,
        end_token_ids=[2],
        num_calls=1,
    )

    def accepts(text: str) -> bool:
        matcher = LLMatcher(theirs, grammar.text, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = harmony.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    for before in ("", OF_THOUGHT):
        assert accepts(before + CALL)
        assert accepts(f"{before}{FINAL}7")
        assert not accepts(f"{before}{FINAL}seven")
        assert not accepts(f"{before}7")
    assert not accepts(OF_THOUGHT)
