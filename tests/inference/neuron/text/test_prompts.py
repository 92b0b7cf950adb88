"""Prompts: what is tokenized, counted and refused, how long their answers may be, and how they
think."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text import inputs
from inference.neuron.text.answers import echo_of
from inference.neuron.text.inputs import count_tokens, tokenized
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import TokenBudget, used_sampling
from inference.neuron.text.prompts import MAX_ARGUMENTS_CHARACTERS, chat_prompt, prepare, shortened
from inference.protocol.engine import ThinkingLimit
from inference.protocol.events import Tokenized, UsedSampling
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    OutputFormat,
    TextInput,
    TokenCountRequest,
    TokenizeRequest,
    TokensInput,
    ToolCall,
    ToolDefinition,
)
from inference.text import phrases
from inference.text.tokenizer import MAX_BYTES_PER_TOKEN
from tests.cases import each_case
from tests.inference.neuron.model_texts import (
    OPENS,
    THINKS,
    a_chat,
    model_text,
    prepared,
    refusal,
    request_for_model,
)

X = TextInput(texts=["x"])
ABC = TextInput(texts=["abc"])
TWO = TokensInput(prompts=[[5] * 20, [6] * 30])
TOOL = ToolDefinition(name="f", path="tools[0].parameters")
LONG_CALL = ToolCall(id="c", name="f", arguments=json.dumps("x" * MAX_ARGUMENTS_CHARACTERS))
CALLS = ChatInput(messages=[ChatMessage(role="assistant", tool_calls=[LONG_CALL])])
PLAIN = "{{ messages[0].content }}"
LONG = "x" * (100 * MAX_BYTES_PER_TOKEN)
X90 = TokensInput(prompts=[[5] * 90])
BOTH = "What always fits is 75 of input beside 25 of output"
SPOKEN = (
    PLAIN
    + "{% if thinking %}"
    + " ".join((phrases.SPOKEN.opens[0], phrases.SPOKEN.closes[0], "{% endif %}"))
)
TAGGED = PLAIN + "{# </think> #}{% if thinking is not false %}<think>\n{% endif %}"


@pytest.fixture
def text(byte_level_dir: Path) -> ModelText:
    return model_text(byte_level_dir)


def _tokenized(directory: Path, given: Any, **more: bool) -> Tokenized:
    request = TokenizeRequest(model="m", input=given, **more)
    return tokenized("r", request, model_text(directory))


def test_tokens_are_those_that_the_prompt_is_answered_with(
    text: ModelText, byte_level_dir: Path, sentencepiece_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_bos, the = model_text(sentencepiece_dir), TextInput(texts=["The"])
    plain = _tokenized(sentencepiece_dir, the)
    answered = [1, *plain.token_ids]
    assert prepared(with_bos, the).prompts[0] == answered
    assert _tokenized(sentencepiece_dir, the, adds_special_tokens=True).token_ids == answered
    assert plain.context_tokens == 100
    assert 1 not in prepared(with_bos, a_chat("The")).prompts[0]
    chat = prepared(text, a_chat())
    assert chat.prompts[0][0] == 1 and 2 in chat.prompts[0] and not chat.continues_text
    assert _tokenized(byte_level_dir, a_chat()).token_ids == chat.prompts[0]
    assert prepared(text, TokensInput(prompts=[[7, 8]])).prompts[0] == [7, 8]
    there = _tokenized(byte_level_dir, TextInput(texts=["The cat"]), shows_texts=True)
    assert "".join(there.texts or []) == "The cat"
    back = _tokenized(byte_level_dir, TokensInput(prompts=[there.token_ids]))
    assert back.text == "The cat"
    with pytest.raises(RequestRefusedError) as refused:
        _tokenized(byte_level_dir, TokensInput(prompts=[[10**6]]))
    assert refused.value.failure.code == "bad_token_id"
    monkeypatch.setattr(inputs, "MAX_RETURNED_TOKENS", 2)
    with pytest.raises(RequestRefusedError, match="at most 2"):
        _tokenized(byte_level_dir, TextInput(texts=["The cat sat on the mat"]))


@each_case(
    ("template", "prompt", "request_", "code", "param", "words"),
    [
        (None, TokensInput(prompts=[[1000]]), {}, "bad_token_id", None, ""),
        (None, TokensInput(prompts=[[-1]]), {}, "bad_token_id", None, ""),
        (None, TextInput(texts=[""]), {}, "empty_prompt", None, ""),
        (None, CALLS, {}, "invalid_value", "messages", str(MAX_ARGUMENTS_CHARACTERS)),
        (None, X, {"logit_bias": {5000: 1.0}}, None, "logit_bias", ""),
        (None, X, {"stop_token_ids": [5000]}, None, "stop_token_ids", ""),
        ("{# nothing #}", a_chat(), {}, "empty_prompt", "messages", ""),
        (PLAIN, a_chat(tools=[TOOL]), {}, "template_render_failed", "tools", ""),
        (None, TextInput(texts=["q" * 120]), {}, None, "prompt", "the prompt has 120,"),
        (None, TextInput(texts=[LONG]), {}, "context_length_exceeded", "prompt", "at least 10"),
        (None, a_chat(LONG), {}, "context_length_exceeded", "messages", "100 tokens"),
        # What does not fit is refused with both limits.
        (None, TokensInput(prompts=[[5] * 100]), {}, "context_length_exceeded", None, BOTH),
        (None, X90, {"max_tokens": 11}, "context_length_exceeded", None, BOTH),
        (None, TextInput(texts=["q7" * 60]), {}, "context_length_exceeded", None, BOTH),
    ],
)
def test_what_is_refused(
    byte_level_dir: Path,
    template: str | None,
    prompt: Any,
    request_: dict[str, Any],
    code: str | None,
    param: str | None,
    words: str,
) -> None:
    failure = refusal(model_text(byte_level_dir, chat_template=template), prompt, **request_)
    assert code in (failure.code, None) and param in (failure.param, None)
    assert words in failure.message


@each_case(
    ("asked", "bound", "budget", "ends_at_context", "max_tokens", "reason"),
    [
        (None, None, None, False, 10, "length"),
        (None, None, None, True, 10, "context"),
        (None, 4, None, True, 4, "length"),
        (10, None, None, True, 10, "length"),
        (11, None, None, True, 10, "context"),
        (5, 4, None, True, 4, "length"),
        (21, 20, None, True, 10, "context"),
        # The budget bounds an answer for which the client named no number.
        (None, None, 8, False, 8, "length"),
        (None, 5, 8, False, 5, "length"),
        (9, None, 8, False, 9, "length"),
        (None, None, 500, False, 10, "length"),
    ],
)
def test_how_long_an_answer_may_be_and_why(
    byte_level_dir: Path,
    asked: int | None,
    bound: int | None,
    budget: int | None,
    ends_at_context: bool,
    max_tokens: int,
    reason: str,
) -> None:
    text = model_text(byte_level_dir, max_output_tokens=bound)
    request = request_for_model(max_tokens=asked, ends_at_context=ends_at_context)
    made = prepare(request, text, TokenBudget(output_tokens=budget))
    assert (made.params.max_tokens, made.limit.reason) == (max_tokens, reason)


def test_more_than_operator_or_budget_allow(text: ModelText, byte_level_dir: Path) -> None:
    bound = model_text(byte_level_dir, max_output_tokens=10)
    failure = refusal(bound, TextInput(texts=["x" * 100_000]))
    assert failure.too_long is not None and "context length is 100 tokens" in failure.message
    assert failure.message.endswith("What always fits is 90 of input beside 10 of output")
    failure = refusal(bound, max_tokens=11)
    assert "at most 10 tokens and you asked for 11" in failure.message
    assert failure.param == "max_tokens"
    paid = prepare(request_for_model(TWO), text, TokenBudget(prompt_tokens=50))
    assert paid.num_prompt_tokens == 50
    failure = refusal(text, TWO, TokenBudget(prompt_tokens=49))
    assert failure.code == "insufficient_quota"
    assert "50 tokens" in failure.message and "49" in failure.message
    assert refusal(text, TWO, TokenBudget(output_tokens=0)).code == "insufficient_quota"


def test_echoes_and_scores_of_prompts(text: ModelText, byte_level_dir: Path) -> None:
    for prompt, echo, top, of_prompt, scores in [
        *((ABC, False, 2, None, None), (ABC, False, None, 3, 3), (ABC, True, 2, 5, 5)),
        *((ABC, True, 2, 0, 2), (ABC, True, None, 0, 0), (a_chat("abc"), False, None, 1, 1)),
    ]:
        made = prepared(text, prompt, top_logprobs=top, prompt_logprobs=of_prompt, echo=echo)
        assert made.params.prompt_logprobs == scores
    token_ids = text.tokenizer.encode("Straße", add_special_tokens=False)
    for prompt in (TextInput(texts=["Straße"]), TokensInput(prompts=[token_ids])):
        request = request_for_model(prompt, echo=True)
        echo = echo_of(0, request, prepared(text, prompt, echo=True), text)
        assert echo.text == "Straße" and not echo.logprobs
    scored: dict[str, Any] = {"top_logprobs": 2, "max_tokens": 0, "echo": True}
    made = prepared(text, ABC, **scored)
    assert (made.params.prompt_logprobs, made.params.max_tokens) == (2, 1)
    (first,) = echo_of(0, request_for_model(ABC, **scored), made, text).logprobs
    assert first.logprob is None and first.top == []
    text = model_text(byte_level_dir, context_tokens=2**15)
    asked = TokensInput(prompts=[[5] * 2**13] * 2)
    prepared(text, asked, prompt_logprobs=15)
    failure = refusal(text, asked, prompt_logprobs=16)
    assert failure.param == "prompt_logprobs" and str(2**18) in failure.message


def test_counting_renders_and_refuses_alike(byte_level_dir: Path, thinking_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    for chat in (a_chat(), a_chat(thinking=True)):
        counted = count_tokens(TokenCountRequest(model="m", input=chat), text)
        assert counted == prepared(text, chat).num_prompt_tokens
    assert counted > count_tokens(TokenCountRequest(model="m", input=a_chat()), text)
    text = model_text(byte_level_dir, chat_template="{{ tools }}" + PLAIN)
    tool = msgspec.structs.replace(TOOL, parameters={"type": "object"})
    wrong = OutputFormat(path="output_format.schema", schema={"type": "no such type"})
    for chat, output_format in ((a_chat(tools=[tool]), None), (a_chat(), wrong)):
        asked = TokenCountRequest(model="m", input=chat, output_format=output_format)
        with pytest.raises(RequestRefusedError) as counting:
            count_tokens(asked, text)
        assert counting.value.failure == refusal(text, chat, output_format=output_format)


def test_sampling_is_the_clients_then_the_models_then_neutral(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, generation_defaults={"temperature": 0.6, "top_k": 20})
    params = prepared(text, X, temperature=0.0, stop_token_ids=[9, 2]).params
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 20, 1.0)
    assert (params.repetition_penalty, params.stop_token_ids) == (1.0, [2, 9])
    ignoring = prepared(text, X, ignore_eos=True, stop_token_ids=[9], frequency_penalty=0.5)
    assert ignoring.params.stop_token_ids == [9]
    assert used_sampling(ignoring.params) == UsedSampling(
        temperature=0.6, top_p=1.0, presence_penalty=0.0, frequency_penalty=0.5
    )
    assert prepared(text, a_chat(), prediction="The cat").prediction == []
    drafting = replace(text, report=msgspec.structs.replace(text.report, takes_predictions=True))
    expected = text.tokenizer.encode("The cat", add_special_tokens=False)
    assert prepared(drafting, a_chat(), prediction="The cat").prediction == expected


def _chat(num_turns: int) -> ChatInput:
    words = [("system", "s")]
    words += [(who, f"{who[0]}{n}") for n in range(num_turns) for who in ("user", "assistant")]
    messages = [ChatMessage(role=role, content=content) for role, content in words]
    return ChatInput(messages=messages, may_lose=[1 + 2 * turn for turn in range(1, num_turns)])


@given(num_turns=st.integers(1, 12), room=st.integers(1, 30))
def test_the_fewest_turns_that_are_enough_are_left_out(num_turns: int, room: int) -> None:
    chat = _chat(num_turns)
    made, lost = shortened(chat, lambda one: len(one.messages) <= room)
    assert made.messages == [chat.messages[0], *chat.messages[1 + 2 * lost :]]
    least = max(0, -(-(len(chat.messages) - room) // 2))
    assert lost == min(least, num_turns - 1)
    kept = ChatInput(messages=chat.messages)
    assert shortened(kept, lambda _: False) == (kept, 0)


def test_a_prompt_is_cut_to_the_context(text: ModelText) -> None:
    chat = _chat(20)
    uncut = refusal(text, ChatInput(messages=chat.messages))
    assert "maximum context length" in uncut.message
    whole = prepared(text, chat)
    assert 0 < whole.num_lost_turns < 19
    assert whole.num_prompt_tokens < text.report.context_tokens
    with_room = prepared(text, chat, max_tokens=50)
    assert with_room.num_lost_turns > whole.num_lost_turns
    assert with_room.num_prompt_tokens + 50 <= text.report.context_tokens
    long = ChatMessage(role="user", content="word " * 300)
    last = ChatInput(messages=[*_chat(2).messages, long], may_lose=[3, 5])
    assert refusal(text, last).code == "context_length_exceeded"


def test_a_block_that_the_template_opens(thinking_dir: Path, byte_level_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    assert prepared(text, a_chat(thinking=True)).thinking.is_open
    assert prepared(text, a_chat(shows_reasoning=True)).thinking.is_open
    unasked = prepared(text, a_chat()).thinking
    assert not unasked.is_open and unasked.markers is not None
    raw = prepared(text, TextInput(texts=["<think>"])).thinking
    assert (raw.markers, raw.is_open) == (None, False)
    for thinking, block in ((False, ""), (None, "<think>\n\n</think>\n\n")):
        chat = a_chat(thinking=thinking, shows_reasoning=True, answer_start="Once ")
        made = prepared(text, chat)  # the answer goes on from its start, after the block
        assert made.prompts == [text.tokenizer.encode(f"Hi{block}Once ", add_special_tokens=False)]
        assert made.continues_text and not made.thinking.is_open
    text = model_text(byte_level_dir, chat_template=SPOKEN)
    for chat, found in (
        (a_chat(thinking=True), phrases.SPOKEN),
        (a_chat(shows_reasoning=True), phrases.SPOKEN),
        (a_chat(), None),
        (a_chat(thinking=True, answer_start="Yes"), None),
    ):
        assert prepared(text, chat).thinking.phrases is found
    markers = model_text(thinking_dir).markers
    from_start = ThinkingLimit(max_tokens=7, end_token_id=markers.end_token_id)
    later = msgspec.structs.replace(from_start, start_token_id=markers.start_token_id)
    asked = a_chat(thinking=True, thinking_budget_tokens=7)
    for directory, template, limit in (
        *((thinking_dir, OPENS, from_start), (thinking_dir, THINKS, later)),
        (byte_level_dir, THINKS, None),
    ):
        made = prepared(model_text(directory, chat_template=template), asked)
        assert made.params.thinking_limit == limit, "a budget limits the block"


def test_tags_of_several_tokens_open_a_block_no_token_ends(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template=TAGGED)
    opened = prepared(text, a_chat(thinking=True))
    assert opened.thinking.is_open and opened.params.thinking_limit is None
    assert not prepared(text, a_chat(thinking=False)).thinking.is_open
    begun = a_chat(thinking=True, answer_start="Yes")
    assert chat_prompt(begun, text, 100) == "Hi<think>\n\n</think>\n\nYes"
    in_json = {"output_format": OutputFormat(path="format")}
    bounded = a_chat(thinking=True, thinking_budget_tokens=5)
    for chat, fields in ((bounded, {}), (a_chat(thinking=True), in_json)):
        assert refusal(text, chat, **fields).code == "unsupported_parameter"
    assert prepared(text, a_chat(thinking=False), **in_json).params.grammar is not None
