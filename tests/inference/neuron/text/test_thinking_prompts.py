"""Prompts that open a block of thinking, or continue an answer's start."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.prompt_tokens import chat_prompt
from inference.neuron.text.prompts import prepare
from inference.protocol.generation import (
    OutputFormat,
    TextInput,
)
from inference.protocol.sampling import ThinkingLimit
from inference.text.answers import phrases
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import OPENS, THINKS, a_chat, request_for_model

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
