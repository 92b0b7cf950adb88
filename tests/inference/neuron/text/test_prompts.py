"""Prompts: tokenizing with or without special tokens, counting and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.output_rules import used_sampling
from inference.neuron.text.prompts import MAX_ARGUMENTS_CHARACTERS, chat_prompt, prepare, shortened
from inference.neuron.text.tokenize import count_tokens
from inference.protocol.events import UsedSampling
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    OutputFormat,
    TextInput,
    TokenCountRequest,
    TokensInput,
    ToolCall,
    ToolDefinition,
)
from inference.protocol.sampling import SamplingOptions, ThinkingLimit
from inference.text.answers import phrases
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import OPENS, THINKS, a_chat, prepared, request_for_model


def test_a_text_prompt_gets_its_bos_and_a_chat_renders_its_own(sentencepiece_dir: Path) -> None:
    text = model_text(sentencepiece_dir)
    assert prepared(text, TextInput(texts=["The"])).prompts[0][0] == 1
    chat = ChatInput(messages=[ChatMessage(role="user", content="The")])
    assert 1 not in prepared(text, chat).prompts[0]


def test_a_chat_becomes_special_tokens(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    chat = ChatInput(messages=[ChatMessage(role="user", content="Hi")])
    prompt = prepared(text, chat)
    assert prompt.prompts[0][0] == 1
    assert 2 in prompt.prompts[0]
    assert not prompt.continues_text


def test_token_prompts_are_verbatim_and_checked(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    assert prepared(text, TokensInput(prompts=[[7, 8]])).prompts[0] == [7, 8]
    for bad in (1000, -1):
        with pytest.raises(RequestRefusedError) as refused:
            prepared(text, TokensInput(prompts=[[bad]]))
        assert refused.value.failure.code == "bad_token_id"


def test_what_a_client_expects_is_tokens_where_the_engine_drafts(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    chat = ChatInput(messages=[ChatMessage(role="user", content="Hi")])
    request = GenerationRequest(model="m", input=chat, prediction="The cat")
    assert prepare(request, text).prediction == []
    drafting = replace(text, report=msgspec.structs.replace(text.report, takes_predictions=True))
    expected = text.tokenizer.encode("The cat", add_special_tokens=False)
    assert prepare(request, drafting).prediction == expected


def test_an_empty_prompt_is_refused(byte_level_dir: Path) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        prepared(model_text(byte_level_dir), TextInput(texts=[""]))
    assert refused.value.failure.code == "empty_prompt"


def test_a_template_that_writes_nothing_is_refused(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template="{# nothing #}")
    with pytest.raises(RequestRefusedError) as refused:
        prepared(text, ChatInput(messages=[ChatMessage(role="user", content="Hi")]))
    assert (refused.value.failure.code, refused.value.failure.param) == ("empty_prompt", "messages")


def test_counting_renders_what_answering_renders(thinking_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    for chat in (a_chat(), a_chat(thinking=True)):
        counted = count_tokens(TokenCountRequest(model="m", input=chat), text)
        assert counted == prepare(request_for_model(input=chat), text).num_prompt_tokens
    assert counted > count_tokens(TokenCountRequest(model="m", input=a_chat()), text)


def test_counting_refuses_what_answering_refuses(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template="{{ tools }}{{ messages[0].content }}")
    tool = ToolDefinition(name="f", path="tools[0].parameters", parameters={"type": "object"})
    wrong = OutputFormat(path="output_format.schema", schema={"type": "no such type"})
    for chat, output_format in ((a_chat(tools=[tool]), None), (a_chat(), wrong)):
        with pytest.raises(RequestRefusedError) as answering:
            prepare(request_for_model(input=chat, output_format=output_format), text)
        with pytest.raises(RequestRefusedError) as counting:
            count_tokens(
                TokenCountRequest(model="m", input=chat, output_format=output_format), text
            )
        assert counting.value.failure == answering.value.failure


def test_tools_without_a_place_are_refused_as_tools(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template="{{ messages[0].content }}")
    with pytest.raises(RequestRefusedError) as refused:
        prepared(text, a_chat(tools=[ToolDefinition(name="f", path="tools[0].parameters")]))
    assert refused.value.failure.param == "tools"


def test_the_fingerprint_is_of_what_answers(byte_level_dir: Path) -> None:
    made = model_text(byte_level_dir).fingerprint
    assert made == model_text(byte_level_dir).fingerprint
    assert made != model_text(byte_level_dir, dtype="bfloat16").fingerprint
    assert made != model_text(byte_level_dir, chat_template="x").fingerprint


def test_capabilities_are_what_the_files_report(byte_level_dir: Path, thinking_dir: Path) -> None:
    always = {"chat", "completions", "logprobs", "structured_output"}
    takes_tools = "{{ tools }}<tool_call>"
    for directory, template, more in (
        (byte_level_dir, None, set()),
        (byte_level_dir, takes_tools, {"tool_call"}),
        (byte_level_dir, OPENS, set()),
        (thinking_dir, THINKS, set()),
        (thinking_dir, OPENS, {"reasoning"}),
        (thinking_dir, OPENS + takes_tools, {"reasoning", "tool_call"}),
    ):
        found = model_text(directory, chat_template=template).capabilities
        assert set(found) == always | more
    assert model_text(byte_level_dir, kind="embedding").capabilities == ["embeddings"]


def test_a_text_that_cannot_fit_is_refused_by_its_size_alone(
    byte_level_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = model_text(byte_level_dir)
    most = text.tokenizer.most_bytes_per_token
    assert most is not None
    monkeypatch.setattr(text.tokenizer, "encode", None)
    for prompt, param in (
        (TextInput(texts=["x" * (100 * most)]), "prompt"),
        (ChatInput(messages=[ChatMessage(role="user", content="x" * (100 * most))]), "messages"),
    ):
        with pytest.raises(RequestRefusedError) as refused:
            prepared(text, prompt)
        failure = refused.value.failure
        assert (failure.code, failure.param) == ("context_length_exceeded", param)
        for words in ("100 tokens", "at least 10", f"more than {most}"):
            assert words in failure.message


def test_what_may_fit_by_its_size_is_counted(byte_level_dir: Path) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        prepared(model_text(byte_level_dir), TextInput(texts=["q" * 120]))
    assert "the prompt has 120," in refused.value.failure.message


def test_a_tool_call_with_too_long_arguments_is_refused(byte_level_dir: Path) -> None:
    calls = [ToolCall(id="c", name="f", arguments=json.dumps("x" * MAX_ARGUMENTS_CHARACTERS))]
    chat = ChatInput(messages=[ChatMessage(role="assistant", tool_calls=calls)])
    with pytest.raises(RequestRefusedError) as refused:
        prepared(model_text(byte_level_dir), chat)
    failure = refused.value.failure
    assert (failure.code, failure.param) == ("invalid_value", "messages")
    assert str(MAX_ARGUMENTS_CHARACTERS) in failure.message


def test_sampling_is_the_clients_then_the_models_then_neutral(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, generation_defaults={"temperature": 0.6, "top_k": 20})
    params = prepared(text, TextInput(texts=["x"]), temperature=0.0).params
    assert params.temperature == 0.0
    assert params.top_k == 20
    assert params.top_p == 1.0
    assert params.repetition_penalty == 1.0
    used = used_sampling(prepared(text, TextInput(texts=["x"]), frequency_penalty=0.5).params)
    assert used == UsedSampling(
        temperature=0.6, top_p=1.0, presence_penalty=0.0, frequency_penalty=0.5
    )


def test_stop_token_ids_hold_eos_unless_it_is_ignored(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    asked = {"stop_token_ids": [9, 2]}
    assert prepared(text, TextInput(texts=["x"]), **asked).params.stop_token_ids == [2, 9]
    ignoring = prepared(text, TextInput(texts=["x"]), ignore_eos=True, stop_token_ids=[9])
    assert ignoring.params.stop_token_ids == [9]


@each_case("field", [{"logit_bias": {5000: 1.0}}, {"stop_token_ids": [5000]}])
def test_token_ids_outside_the_vocabulary_are_refused(
    byte_level_dir: Path, field: dict[str, object]
) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        prepared(model_text(byte_level_dir), TextInput(texts=["x"]), **field)
    assert refused.value.failure.param == next(iter(field))


def _chat(num_turns: int) -> ChatInput:
    messages = [ChatMessage(role="system", content="s")]
    for number in range(num_turns):
        messages += [
            ChatMessage(role="user", content=f"u{number}"),
            ChatMessage(role="assistant", content=f"a{number}"),
        ]
    return ChatInput(messages=messages, may_lose=[1 + 2 * turn for turn in range(1, num_turns)])


@given(num_turns=st.integers(1, 12), room=st.integers(1, 30))
def test_the_fewest_that_are_enough(num_turns: int, room: int) -> None:
    chat = _chat(num_turns)
    made, lost = shortened(chat, lambda one: len(one.messages) <= room)
    assert made.messages == [chat.messages[0], *chat.messages[1 + 2 * lost :]]
    least = max(0, -(-(len(chat.messages) - room) // 2))
    assert lost == min(least, num_turns - 1)


def test_what_may_not_be_lost_stays() -> None:
    chat = ChatInput(messages=_chat(3).messages)
    assert shortened(chat, lambda _: False) == (chat, 0)


def test_a_prompt_is_cut_to_the_context(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    chat = _chat(20)
    with pytest.raises(RequestRefusedError, match="maximum context length"):
        prepare(request_for_model(input=ChatInput(messages=chat.messages)), text)
    whole = prepare(request_for_model(input=chat), text)
    assert 0 < whole.num_lost_turns < 19
    assert whole.num_prompt_tokens < text.report.context_tokens
    with_room = prepare(
        request_for_model(input=chat, sampling=SamplingOptions(max_tokens=50)), text
    )
    assert with_room.num_lost_turns > whole.num_lost_turns
    assert with_room.num_prompt_tokens + 50 <= text.report.context_tokens


def test_a_last_turn_that_is_too_long_is_refused(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    chat = _chat(2)
    long = ChatMessage(role="user", content="word " * 300)
    with pytest.raises(RequestRefusedError) as refused:
        prepare(
            request_for_model(input=ChatInput(messages=[*chat.messages, long], may_lose=[3, 5])),
            text,
        )
    assert refused.value.failure.code == "context_length_exceeded"


SPOKEN = "{{ messages[0].content }}{% if thinking %}" + " ".join(
    (phrases.SPOKEN.opens[0], phrases.SPOKEN.closes[0], "{% endif %}")
)
TAGGED = "{{ messages[0].content }}{# </think> #}{% if thinking is not false %}<think>\n{% endif %}"


class TestPhrases:
    """Thinking between words that are no single tokens."""

    def test_they_are_looked_for_where_the_model_was_asked_to_think(
        self, byte_level_dir: Path
    ) -> None:
        text = model_text(byte_level_dir, chat_template=SPOKEN)
        assert "reasoning" in text.capabilities
        assert (
            prepare(request_for_model(input=a_chat(thinking=True)), text).thinking.phrases
            is phrases.SPOKEN
        )
        assert (
            prepare(request_for_model(input=a_chat(shows_reasoning=True)), text).thinking.phrases
            is not None
        )
        assert prepare(request_for_model(input=a_chat()), text).thinking.phrases is None
        begun = a_chat(thinking=True, answer_start="Yes")
        assert prepare(request_for_model(input=begun), text).thinking.phrases is None

    def test_a_template_opens_the_block(self, byte_level_dir: Path) -> None:
        text = model_text(byte_level_dir, chat_template=TAGGED)
        opened = prepare(request_for_model(input=a_chat(thinking=True)), text)
        assert opened.thinking.is_open and opened.params.thinking_limit is None
        assert not prepare(request_for_model(input=a_chat(thinking=False)), text).thinking.is_open
        begun = a_chat(thinking=True, answer_start="Yes")
        assert chat_prompt(begun, text, 100) == "Hi<think>\n\n</think>\n\nYes"

    def test_what_needs_a_token_that_ends_it_is_refused(self, byte_level_dir: Path) -> None:
        text = model_text(byte_level_dir, chat_template=TAGGED)
        bounded = request_for_model(input=a_chat(thinking=True, thinking_budget_tokens=5))
        in_json = request_for_model(
            input=a_chat(thinking=True), output_format=OutputFormat(path="format")
        )
        for asked in (bounded, in_json):
            with pytest.raises(RequestRefusedError) as refused:
                prepare(asked, text)
            assert refused.value.failure.code == "unsupported_parameter"
        unopened = request_for_model(
            input=a_chat(thinking=False), output_format=OutputFormat(path="format")
        )
        assert prepare(unopened, text).params.grammar is not None


def test_a_prompt_that_opens_the_block_is_noticed(thinking_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    assert prepare(request_for_model(input=a_chat(thinking=True)), text).thinking.is_open
    assert prepare(request_for_model(input=a_chat(shows_reasoning=True)), text).thinking.is_open
    assert not prepare(request_for_model(input=a_chat()), text).thinking.is_open


def test_an_answer_continues_from_its_start(thinking_dir: Path) -> None:
    """After the thinking block, where the template opens one."""
    text = model_text(thinking_dir, chat_template=OPENS)
    for thinking, block in ((False, ""), (None, "<think>\n\n</think>\n\n")):
        chat = a_chat(thinking=thinking, shows_reasoning=True, answer_start="Once ")
        prepared = prepare(request_for_model(input=chat), text)
        wanted = text.tokenizer.encode(f"Hi{block}Once ", add_special_tokens=False)
        assert prepared.prompts == [wanted]
        assert prepared.continues_text
        assert not prepared.thinking.is_open


def test_thinking_is_looked_for_in_chats_only(thinking_dir: Path) -> None:
    text = model_text(thinking_dir, chat_template=OPENS)
    assert prepare(request_for_model(input=a_chat()), text).thinking.markers is not None
    raw = prepare(request_for_model(input=TextInput(texts=["<think>"])), text)
    assert (raw.thinking.markers, raw.thinking.is_open) == (None, False)


def test_a_budget_limits_the_block(thinking_dir: Path, byte_level_dir: Path) -> None:
    def limit(directory: Path, template: str) -> ThinkingLimit | None:
        text = model_text(directory, chat_template=template)
        asked = a_chat(thinking=True, thinking_budget_tokens=7)
        return prepare(request_for_model(input=asked), text).params.thinking_limit

    markers = model_text(thinking_dir).markers
    assert markers is not None
    end = markers.end_token_id
    assert limit(thinking_dir, OPENS) == ThinkingLimit(max_tokens=7, end_token_id=end)
    assert limit(thinking_dir, THINKS) == ThinkingLimit(
        max_tokens=7, end_token_id=end, start_token_id=markers.start_token_id
    )
    assert limit(byte_level_dir, THINKS) is None
