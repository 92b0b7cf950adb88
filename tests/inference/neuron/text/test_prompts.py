"""Prompts: tokenizing with or without special tokens, counting and refusals."""

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
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import used_sampling
from inference.neuron.text.prompts import MAX_ARGUMENTS_CHARACTERS, chat_prompt, shortened
from inference.neuron.text.tokenize import count_tokens
from inference.protocol.events import UsedSampling
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    OutputFormat,
    TextInput,
    TokenCountRequest,
    TokensInput,
    ToolCall,
    ToolDefinition,
)
from inference.protocol.sampling import ThinkingLimit
from inference.text.answers import phrases
from inference.text.tokens.tokenizer import MAX_BYTES_PER_TOKEN
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import OPENS, THINKS, a_chat, prepared, refusal

X = TextInput(texts=["x"])


@pytest.fixture
def text(byte_level_dir: Path) -> ModelText:
    return model_text(byte_level_dir)


def test_special_tokens_are_a_chats_own_or_put_before_a_text(
    text: ModelText, sentencepiece_dir: Path
) -> None:
    with_bos = model_text(sentencepiece_dir)
    assert prepared(with_bos, TextInput(texts=["The"])).prompts[0][0] == 1
    assert 1 not in prepared(with_bos, a_chat("The")).prompts[0]
    chat = prepared(text, a_chat())
    assert chat.prompts[0][0] == 1 and 2 in chat.prompts[0]
    assert not chat.continues_text
    assert prepared(text, TokensInput(prompts=[[7, 8]])).prompts[0] == [7, 8]


TOOL = ToolDefinition(name="f", path="tools[0].parameters")
LONG_CALL = ToolCall(id="c", name="f", arguments=json.dumps("x" * MAX_ARGUMENTS_CHARACTERS))
CALLS = ChatInput(messages=[ChatMessage(role="assistant", tool_calls=[LONG_CALL])])


@each_case(
    ("prompt", "request_", "code", "param"),
    [
        (TokensInput(prompts=[[1000]]), {}, "bad_token_id", ...),
        (TokensInput(prompts=[[-1]]), {}, "bad_token_id", ...),
        (TextInput(texts=[""]), {}, "empty_prompt", ...),
        (CALLS, {}, "invalid_value", "messages"),
        (X, {"logit_bias": {5000: 1.0}}, ..., "logit_bias"),
        (X, {"stop_token_ids": [5000]}, ..., "stop_token_ids"),
    ],
)
def test_what_is_refused(
    text: ModelText, prompt: Any, request_: dict[str, Any], code: Any, param: Any
) -> None:
    failure = refusal(text, prompt, **request_)
    assert code in (failure.code, ...) and param in (failure.param, ...)
    assert code != "invalid_value" or str(MAX_ARGUMENTS_CHARACTERS) in failure.message


@each_case(
    ("template", "tools", "code", "param"),
    [
        ("{# nothing #}", [], "empty_prompt", "messages"),
        ("{{ messages[0].content }}", [TOOL], "template_render_failed", "tools"),
    ],
)
def test_what_a_template_has_no_place_for_is_refused(
    byte_level_dir: Path, template: str, tools: list[ToolDefinition], code: str, param: str
) -> None:
    text = model_text(byte_level_dir, chat_template=template)
    failure = refusal(text, a_chat(tools=tools))
    assert failure.code == code and failure.param == param


def test_what_a_client_expects_is_tokens_where_the_engine_drafts(text: ModelText) -> None:
    assert prepared(text, a_chat(), prediction="The cat").prediction == []
    drafting = replace(text, report=msgspec.structs.replace(text.report, takes_predictions=True))
    expected = text.tokenizer.encode("The cat", add_special_tokens=False)
    assert prepared(drafting, a_chat(), prediction="The cat").prediction == expected


def test_counting_is_of_what_answering_renders_and_refuses(
    byte_level_dir: Path, thinking_dir: Path
) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    for chat in (a_chat(), a_chat(thinking=True)):
        counted = count_tokens(TokenCountRequest(model="m", input=chat), text)
        assert counted == prepared(text, chat).num_prompt_tokens
    assert counted > count_tokens(TokenCountRequest(model="m", input=a_chat()), text)
    text = model_text(byte_level_dir, chat_template="{{ tools }}{{ messages[0].content }}")
    tool = msgspec.structs.replace(TOOL, parameters={"type": "object"})
    wrong = OutputFormat(path="output_format.schema", schema={"type": "no such type"})
    for chat, output_format in ((a_chat(tools=[tool]), None), (a_chat(), wrong)):
        asked = TokenCountRequest(model="m", input=chat, output_format=output_format)
        with pytest.raises(RequestRefusedError) as counting:
            count_tokens(asked, text)
        assert counting.value.failure == refusal(text, chat, output_format=output_format)


def test_the_fingerprint_is_of_what_answers(byte_level_dir: Path, text: ModelText) -> None:
    assert text.fingerprint == model_text(byte_level_dir).fingerprint
    assert text.fingerprint != model_text(byte_level_dir, dtype="bfloat16").fingerprint
    assert text.fingerprint != model_text(byte_level_dir, chat_template="x").fingerprint


def test_capabilities_are_what_the_files_report(byte_level_dir: Path, thinking_dir: Path) -> None:
    always = {"chat", "completions", "logprobs", "structured_output"}
    takes_tools = "{{ tools }}<tool_call>"
    for directory, template, more in (
        (byte_level_dir, None, set()),
        (byte_level_dir, takes_tools, {"tool_call"}),
        (byte_level_dir, OPENS, set()),
        (byte_level_dir, SPOKEN, {"reasoning"}),
        (thinking_dir, THINKS, set()),
        (thinking_dir, OPENS, {"reasoning"}),
        (thinking_dir, OPENS + takes_tools, {"reasoning", "tool_call"}),
    ):
        found = model_text(directory, chat_template=template).capabilities
        assert set(found) == always | more
    assert model_text(byte_level_dir, kind="embedding").capabilities == ["embeddings"]


def test_a_text_that_cannot_fit_is_refused(text: ModelText) -> None:
    assert "the prompt has 120," in refusal(text, TextInput(texts=["q" * 120])).message
    long = "x" * (100 * MAX_BYTES_PER_TOKEN)
    for prompt, param in ((TextInput(texts=[long]), "prompt"), (a_chat(long), "messages")):
        failure = refusal(text, prompt)
        assert (failure.code, failure.param) == ("context_length_exceeded", param)
        assert "100 tokens" in failure.message and "at least 10" in failure.message


def test_sampling_is_the_clients_then_the_models_then_neutral(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, generation_defaults={"temperature": 0.6, "top_k": 20})
    params = prepared(text, X, temperature=0.0).params
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 20, 1.0)
    assert params.repetition_penalty == 1.0
    used = used_sampling(prepared(text, X, frequency_penalty=0.5).params)
    assert used == UsedSampling(
        temperature=0.6, top_p=1.0, presence_penalty=0.0, frequency_penalty=0.5
    )


def test_stop_token_ids_hold_eos_unless_it_is_ignored(text: ModelText) -> None:
    assert prepared(text, X, stop_token_ids=[9, 2]).params.stop_token_ids == [2, 9]
    ignoring = prepared(text, X, ignore_eos=True, stop_token_ids=[9])
    assert ignoring.params.stop_token_ids == [9]


def _chat(num_turns: int) -> ChatInput:
    messages = [ChatMessage(role="system", content="s")]
    for number in range(num_turns):
        messages += [
            ChatMessage(role="user", content=f"u{number}"),
            ChatMessage(role="assistant", content=f"a{number}"),
        ]
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


SPOKEN = "{{ messages[0].content }}{% if thinking %}" + " ".join(
    (phrases.SPOKEN.opens[0], phrases.SPOKEN.closes[0], "{% endif %}")
)
TAGGED = "{{ messages[0].content }}{# </think> #}{% if thinking is not false %}<think>\n{% endif %}"


def test_spoken_phrases_are_looked_for_where_the_model_was_asked_to_think(
    byte_level_dir: Path,
) -> None:
    text = model_text(byte_level_dir, chat_template=SPOKEN)
    for chat, found in (
        (a_chat(thinking=True), phrases.SPOKEN),
        (a_chat(shows_reasoning=True), phrases.SPOKEN),
        (a_chat(), None),
        (a_chat(thinking=True, answer_start="Yes"), None),
    ):
        assert prepared(text, chat).thinking.phrases is found


def test_tags_that_are_no_single_tokens_open_a_block_that_no_token_ends(
    byte_level_dir: Path,
) -> None:
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


def test_a_prompt_that_opens_the_block_is_noticed_in_chats_only(thinking_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    assert prepared(text, a_chat(thinking=True)).thinking.is_open
    assert prepared(text, a_chat(shows_reasoning=True)).thinking.is_open
    unasked = prepared(text, a_chat()).thinking
    assert not unasked.is_open and unasked.markers is not None
    raw = prepared(text, TextInput(texts=["<think>"])).thinking
    assert (raw.markers, raw.is_open) == (None, False)


def test_an_answer_continues_from_its_start(thinking_dir: Path) -> None:
    """After the thinking block, where the template opens one."""
    text = model_text(thinking_dir, chat_template=OPENS)
    for thinking, block in ((False, ""), (None, "<think>\n\n</think>\n\n")):
        chat = a_chat(thinking=thinking, shows_reasoning=True, answer_start="Once ")
        made = prepared(text, chat)
        assert made.prompts == [text.tokenizer.encode(f"Hi{block}Once ", add_special_tokens=False)]
        assert made.continues_text and not made.thinking.is_open


def test_a_budget_limits_the_block(thinking_dir: Path, byte_level_dir: Path) -> None:
    def limit(directory: Path, template: str) -> ThinkingLimit | None:
        text = model_text(directory, chat_template=template)
        asked = a_chat(thinking=True, thinking_budget_tokens=7)
        return prepared(text, asked).params.thinking_limit

    markers = model_text(thinking_dir).markers
    assert markers is not None
    end = markers.end_token_id
    assert limit(thinking_dir, OPENS) == ThinkingLimit(max_tokens=7, end_token_id=end)
    assert limit(thinking_dir, THINKS) == ThinkingLimit(
        max_tokens=7, end_token_id=end, start_token_id=markers.start_token_id
    )
    assert limit(byte_level_dir, THINKS) is None
