"""Golden cases of the dialects: a request, the events that answer it, and what a client gets.

    request     what the client sent
    headers     and its headers, where they matter
    events      what happened: then also
        parsed      the request inside
        stream      the answer, streamed, where the dialect has streams
        body        the answer, whole
    or error    the refusal, where the parser refuses

``python -m tests.inference.wire.golden`` rewrites every output, also those of files and batches;
read the diff before you commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from inference.protocol.events import Event
from inference.protocol.generation import Request
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import ErrorDialect, RequestContext
from inference.wire.errors import ApiError
from inference.wire.ollama import chat as ollama_chat
from inference.wire.ollama import embed as ollama_embed
from inference.wire.ollama import errors as ollama_errors
from inference.wire.openai import completions as openai_completions
from inference.wire.openai import embeddings as openai_embeddings
from inference.wire.openai import errors as openai_errors
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.responses import errors as openai_responses_errors
from inference.wire.openai.responses import request as openai_responses
from inference.wire.vllm import rerank
from tests.inference.wire import golden_batches
from tests.inference.wire.golden_cases import GoldenCase, cases_of, lines_of, regenerate

Parser = Callable[[bytes, RequestContext], Any]
DIALECTS: dict[str, tuple[Parser, ErrorDialect]] = {
    "anthropic_messages": (anthropic_messages.parse, anthropic_errors),
    "ollama_chat": (ollama_chat.parse, ollama_errors),
    "ollama_embed": (ollama_embed.parse, ollama_errors),
    "ollama_generate": (ollama_chat.parse_generate, ollama_errors),
    "openai_chat": (openai_chat.parse, openai_errors),
    "openai_completions": (openai_completions.parse, openai_errors),
    "openai_embeddings": (openai_embeddings.parse, openai_errors),
    "openai_responses": (openai_responses.parse, openai_responses_errors),
    "rerank": (rerank.parse, openai_errors),
    "vllm_score": (rerank.parse_score, openai_errors),
}
UNSTREAMED = frozenset({"ollama_embed", "openai_embeddings", "rerank", "vllm_score"})
OPTIONAL = frozenset({"headers"})
ANSWERED = frozenset({"request", "events", "parsed", "body"})
REFUSED = frozenset({"request", "error"})
REQUEST_ID = "0123456789abcdef"
CREATED_UNIX_S = 1_700_000_000

decode_events = msgspec.json.Decoder(list[Event]).decode


class Case(GoldenCase):
    def outputs(self) -> dict[str, Any]:
        parse, errors = DIALECTS[self.dialect]
        try:
            context = RequestContext(headers=self.parts.get("headers", {}))
            request = parse(self.given("request"), context)
        except ApiError as error:
            error_json = json.loads(errors.error_body(error, request_id=REQUEST_ID))
            return {"error": {"status": error.status, **error_json}}
        events = decode_events(self.given("events"))
        made = {"request_id": REQUEST_ID, "clock": lambda: CREATED_UNIX_S}
        outputs = {
            "parsed": msgspec.to_builtins(request, str_keys=True),
            "body": json.loads(fold(request.body_encoder(**made), events)),
        }
        if self.dialect not in UNSTREAMED:
            outputs["stream"] = lines_of(fold(request.stream_encoder(**made), events))
        return outputs

    def complete_sets(self) -> tuple[frozenset[str], ...]:
        """Which parts a case of this dialect may have."""
        streamed = set() if self.dialect in UNSTREAMED else {"stream"}
        return ANSWERED | streamed, REFUSED

    @property
    def is_answered(self) -> bool:
        return "error" not in self.parts


def fold(encoder: Any, events: list[Event]) -> bytes:
    return b"".join(encoder.encode(event) for event in events)


def inside(parsed: Any) -> Request:
    """What crosses to the neuron."""
    names = ("embedding", "generation", "score")
    request: Request = next(getattr(parsed, name) for name in names if hasattr(parsed, name))
    return request


def cases(*dialects: str) -> list[Case]:
    return cases_of(Case, dialects or DIALECTS)


if __name__ == "__main__":
    regenerate([*cases(), *golden_batches.cases()])
