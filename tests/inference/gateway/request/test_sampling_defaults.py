"""An operator's sampling defaults: a request overrides them, they override the model's files."""

from __future__ import annotations

from inference.gateway.request.admission import with_sampling_defaults
from inference.neuron.requests.prompts.prompts import resolve_sampling
from inference.protocol.generation import (
    EmbeddingRequest,
    GenerationRequest,
    TextInput,
    TokensInput,
)
from inference.protocol.sampling import SamplingOptions
from tests.fleet.conftest import report


def test_the_request_then_the_operator_then_the_files() -> None:
    asked = SamplingOptions(temperature=0.0, presence_penalty=0.5)
    request = GenerationRequest(model="m", input=TokensInput(prompts=[[1]]), sampling=asked)
    defaults = {"temperature": 0.9, "top_k": 5, "repetition_penalty": 1.1, "repetition_window": 64}
    filled = with_sampling_defaults(request, defaults).sampling  # type: ignore[union-attr]
    files = {"temperature": 0.6, "top_k": 20, "top_p": 0.8}
    params = resolve_sampling(filled, 10, report(generation_defaults=files))
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 5, 0.8)
    assert (params.repetition_penalty, params.repetition_window) == (1.1, 64)
    assert params.presence_penalty == 0.5


def test_what_samples_nothing_stays_as_it_is() -> None:
    request = EmbeddingRequest(model="m", input=TextInput(texts=["a"]))
    assert with_sampling_defaults(request, {"temperature": 0.5}) is request
