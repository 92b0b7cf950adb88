"""A conversation's identity, before it is tokenized."""

from __future__ import annotations

import itertools
from typing import Any

from inference.gateway.request.place import MAX_HINTS, routing_hint
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    EmbeddingRequest,
    GenerationRequest,
    TextInput,
    TokensInput,
)
from tests.cases import each_case


def hints(*contents: str, model: str = "tiny", salt: str = "me") -> tuple[bytes, ...]:
    """Returns the hints of a system prompt, then turns of the user and the model."""
    roles: tuple[Any, ...] = ("system", *("user", "assistant") * len(contents))
    messages = [
        ChatMessage(role=role, content=content)
        for role, content in zip(roles, contents, strict=False)
    ]
    request = GenerationRequest(model=model, input=ChatInput(messages=messages))
    return routing_hint(request, model=model, salt=salt).prefixes


TURNS = [f"words {number}" for number in range(40)]


def test_all_turns_of_a_conversation_share_the_first_hint() -> None:
    of_turns = [hints(*TURNS[:length]) for length in range(2, 40, 2)]
    assert len({found[0] for found in of_turns}) == 1
    for shorter, longer in itertools.pairwise(of_turns):
        assert longer[: len(shorter)] == shorter
    assert len(of_turns[-1]) == MAX_HINTS


def test_others_have_others() -> None:
    first = hints("system", "hello")
    assert hints("system", "goodbye")[0] != first[0]
    assert hints("other system", "hello")[0] != first[0]
    assert hints("system", "hello", salt="you")[0] != first[0]
    assert hints("system", "hello", model="other")[0] != first[0]


def test_conversations_that_begin_alike_part_with_the_second_hint() -> None:
    one, two = hints("s", "hello", "hi", "one"), hints("s", "hello", "hi", "two")
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_prompts_of_one_long_message_share_its_beginning() -> None:
    text = "words of a long document " * 100
    one, two = hints("s", text + "What is it?"), hints("s", text + "Who wrote it?")
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert hints("other system", text)[0] != one[0]
    assert hints("s", "Another " + text)[0] != one[0]
    later = hints("s", text + "What is it?", "a text", "And who?")
    assert later[: len(one)] == one


def test_all_turns_of_a_long_conversation_share_the_first_hint() -> None:
    turns = ["x" * 5000 + turn for turn in TURNS]
    of_turns = [hints(*turns[:length]) for length in range(2, 40, 2)]
    for shorter, longer in itertools.pairwise(of_turns):
        assert longer[: len(shorter)] == shorter
    assert len(of_turns[-1]) == MAX_HINTS


@each_case("length", [0, 10, 5_000, 500_000])
def test_texts_and_tokens(length: int) -> None:
    text = GenerationRequest(model="tiny", input=TextInput(texts=["x" * length]))
    tokens = GenerationRequest(model="tiny", input=TokensInput(prompts=[[7] * length]))
    longer = GenerationRequest(model="tiny", input=TextInput(texts=["x" * (length + 2000)]))
    for request in (text, tokens):
        assert 1 <= len(routing_hint(request, model="tiny", salt="").prefixes) <= MAX_HINTS
    if length > 1024:
        first = routing_hint(text, model="tiny", salt="").prefixes[0]
        assert routing_hint(longer, model="tiny", salt="").prefixes[0] == first


def test_vectors_have_no_prefix_to_find_again() -> None:
    request = EmbeddingRequest(model="tiny", input=TextInput(texts=["a"]))
    assert routing_hint(request, model="tiny", salt="").prefixes == ()
