"""Requests, and what the neuron prepares of them for a model."""

from __future__ import annotations

from typing import Any

import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import TokenBudget
from inference.neuron.text.prompts import Prepared, prepare
from inference.protocol.events import Failure
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest, TokensInput
from inference.protocol.sampling import SamplingOptions


def request_for_model(given: Any = None, **request: Any) -> GenerationRequest:
    """Returns a request of 90 tokens, unless its input is ``given``. Fields of the request and
    options of its sampling are told apart."""
    fields = GenerationRequest.__struct_fields__
    options = {name: request.pop(name) for name in [*request] if name not in fields}
    if options:
        request["sampling"] = SamplingOptions(**options)
    return GenerationRequest(model="m", input=given or TokensInput(prompts=[[5] * 90]), **request)


def prepared(text: ModelText, given: Any = None, **request: Any) -> Prepared:
    return prepare(request_for_model(given, **request), text)


def refusal(
    text: ModelText, given: Any = None, budget: TokenBudget | None = None, **request: Any
) -> Failure:
    with pytest.raises(RequestRefusedError) as refused:
        prepare(request_for_model(given, **request), text, budget or TokenBudget())
    return refused.value.failure


THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}"
OPENS = THINKS + "{% if enable_thinking is not false %}<think>\n{% endif %}"


def a_chat(content: str = "Hi", **kwargs: Any) -> ChatInput:
    return ChatInput(messages=[ChatMessage(role="user", content=content)], **kwargs)
