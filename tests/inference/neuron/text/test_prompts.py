"""Prompts: tokenizing with or without special tokens, counting and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.prompt_tokens import MAX_ARGUMENTS_CHARACTERS
from inference.neuron.text.prompts import count_tokens, prepare
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
