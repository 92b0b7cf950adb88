"""Whatever a parser lets through is prepared or refused: nothing else happens to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from inference.gateway.images import without_files
from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.answers import build_answer
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompts import prepare
from inference.protocol.generation import GenerationRequest
from inference.text import tool_calls
from inference.text.tool_calls.json_formats import MistralFormat
from inference.text.tool_calls.python_formats import Llama3Format
from inference.text.tool_calls.tag_formats import QWEN_CODER, TagFormat
from inference.wire.dialect import RequestContext
from inference.wire.errors import ApiError
from inference.wire.failures import FAILURES
from inference.wire.images import ImageRules
from tests.inference.neuron.model_texts import CHAT_TEMPLATE, model_text
from tests.inference.text.family_templates import LLAMA, MISTRAL, QWEN
from tests.inference.wire.golden import DIALECTS, inside
from tests.inference.wire.test_random_bodies import random_bodies, seeds_of

FORMATS = {
    QWEN: tool_calls.FORMATS["hermes"],
    CHAT_TEMPLATE: TagFormat(QWEN_CODER),
    LLAMA: Llama3Format(),
    MISTRAL: MistralFormat(writes_lists=True),
}
NUM_BODIES = 1500


@pytest.fixture(scope="module")
def texts(thinking_dir: Path, sentencepiece_dir: Path) -> list[ModelText]:
    """Every format, with templates that take tools, and one model without any."""
    some = [
        dataclasses.replace(
            model_text(thinking_dir, chat_template=template, context_tokens=2000), tool_format=form
        )
        for template, form in FORMATS.items()
    ]
    return [*some, model_text(sentencepiece_dir, context_tokens=50, max_output_tokens=20)]


def any_requests() -> Iterator[GenerationRequest]:
    for dialect in ("openai_chat", "openai_completions", "openai_responses"):
        read, _ = DIALECTS[dialect]
        for body in random_bodies(seeds_of(dialect), NUM_BODIES, seed=5):
            with suppress(ApiError):
                request, _ = without_files(inside(read(body, RequestContext())), ImageRules())
                if isinstance(request, GenerationRequest):
                    yield request


def test_any_request_is_prepared_or_refused(texts: list[ModelText]) -> None:
    num_prepared = num_refused = 0
    for number, request in enumerate(any_requests()):
        text = texts[number % len(texts)]
        try:
            prepared = prepare(request, text)
            answer = build_answer("r", request, prepared, text)
        except RequestRefusedError as refusal:
            assert refusal.failure.code in FAILURES and refusal.failure.message, request
            num_refused += 1
        else:
            assert answer.num_sequences == request.n * len(prepared.prompts), request
            assert prepared.params.max_tokens >= 1, request
            num_prepared += 1
    assert min(num_prepared, num_refused) > 100, "both are tried"
