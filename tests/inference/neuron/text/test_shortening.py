"""The fewest of the oldest turns are left out, and never the system message."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.prompts import prepare, shortened
from inference.protocol.generation import ChatInput, ChatMessage
from inference.protocol.sampling import SamplingOptions
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import request_for_model


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
    made = shortened(chat, lambda one: len(one.messages) <= room)
    lost = made.num_lost_turns
    assert made.chat.messages == [chat.messages[0], *chat.messages[1 + 2 * lost :]]
    least = max(0, -(-(len(chat.messages) - room) // 2))
    assert lost == min(least, num_turns - 1)


def test_what_may_not_be_lost_stays() -> None:
    chat = ChatInput(messages=_chat(3).messages)
    assert shortened(chat, lambda _: False).chat is chat


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
