"""Requests, and what the neuron prepares of them for a model."""

from __future__ import annotations

from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompts import Prepared, prepare
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TokensInput,
)
from inference.protocol.sampling import SamplingOptions


def prepared(text: ModelText, prompt: object, **sampling: object) -> Prepared:
    options = SamplingOptions(**sampling)  # type: ignore[arg-type]
    return prepare(
        GenerationRequest(model="m", input=prompt, sampling=options),  # type: ignore[arg-type]
        text,
    )


def request_for_model(**request: object) -> GenerationRequest:
    """Returns a request of 90 tokens, unless ``input`` is given."""
    given = {"input": TokensInput(prompts=[[5] * 90])} | request
    return GenerationRequest(model="m", **given)  # type: ignore[arg-type]


THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}"
OPENS = THINKS + "{% if enable_thinking is not false %}<think>\n{% endif %}"


def a_chat(**kwargs: object) -> ChatInput:
    messages = [ChatMessage(role="user", content="Hi")]
    return ChatInput(messages=messages, **kwargs)  # type: ignore[arg-type]
