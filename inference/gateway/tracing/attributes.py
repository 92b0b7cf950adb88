"""The attributes of a request's span, by OpenTelemetry's semantic conventions for generative AI and
HTTP, and in names of our own where these have none. Pure.

No text of a prompt, an answer or an error is among them, and of a key only its public prefix.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from fleet.upstreams.entry import UpstreamEntry
from inference.gateway.request.settle import NO_MODEL, RequestOutcome
from inference.logs.redaction import Redactor
from metering.ledger.entries import Outcome

OPERATION_OF = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/responses/compact": "chat",
    "/v1/messages": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
    "/v1/score": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
    "/v1/audio/speech": "speech",
    "/v1/images/generations": "image_generation",
    "/v1/images/edits": "image_edit",
    "/v1/images/variations": "image_variation",
    "/v1/moderations": "moderation",
}
"""The operation of each endpoint; the conventions have no name for those from ``rerank`` on. Other
endpoints operate no model."""
PROVIDER = "helexa"
MAX_MODEL_CHARACTERS = 128
"""The longest part of a model's name that is reported as the client wrote it."""
masked = Redactor()

Attributes = dict[str, str | int | bool]


def span_name(outcome: RequestOutcome) -> str:
    """``chat tiny``; without the model where it is not known, for its name is the client's text."""
    endpoint, model = outcome.settle.endpoint, outcome.settle.model
    operation = OPERATION_OF.get(endpoint)
    if operation is None:
        return endpoint
    return operation if model == NO_MODEL else f"{operation} {model}"


def error_type(outcome: RequestOutcome) -> str:
    """Returns the error's code; empty where the client got what it asked for."""
    return "" if outcome.kind is Outcome.ANSWERED else outcome.settle.outcome


def request_attributes(outcome: RequestOutcome) -> Attributes:
    settle = outcome.settle
    found: Attributes = {
        "helexa.request_id": settle.request_id,
        "helexa.outcome": outcome.kind.value,
        "helexa.account": settle.account,
        "helexa.key": settle.key,
        "helexa.client": settle.client,
        "helexa.target": settle.neuron,
        "http.route": settle.endpoint,
        "error.type": error_type(outcome),
    }
    found = {name: value for name, value in found.items() if value}
    if outcome.status:
        found["http.response.status_code"] = outcome.status
    if outcome.was_cold:
        found["helexa.was_cold"] = True
    if (operation := OPERATION_OF.get(settle.endpoint)) is not None:
        found |= _of_model(outcome, operation)
    return found


def upstream_attributes(
    entry: UpstreamEntry, model: str, target: str, operation: str
) -> Attributes:
    """Returns the attributes of an attempt at an upstream. ``model``: the upstream's own name for
    it."""
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": entry.dialect,
        "gen_ai.request.model": model,
        "server.address": urlsplit(entry.url).hostname or "",
        "helexa.target": target,
    }


def _of_model(outcome: RequestOutcome, operation: str) -> Attributes:
    settle = outcome.settle
    found: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
    }
    if outcome.model_asked:
        found["gen_ai.request.model"] = masked(outcome.model_asked)[:MAX_MODEL_CHARACTERS]
    if settle.model != NO_MODEL:
        found["gen_ai.response.model"] = settle.model
    if settle.prompt_tokens or settle.completion_tokens:
        found |= {
            "gen_ai.usage.input_tokens": settle.prompt_tokens,
            "gen_ai.usage.output_tokens": settle.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": settle.cached_tokens,
        }
    if settle.time_to_first_token_ms is not None:
        found["helexa.time_to_first_token_ms"] = settle.time_to_first_token_ms
    return found
