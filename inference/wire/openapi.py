"""The OpenAPI document of the clients' API, generated from the parsers' own declarations.

A refused field is listed with its reason and accepts only null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from inference.version import VERSION
from inference.wire import embeddings, vllm
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.errors import ApiError, InvalidTypeError
from inference.wire.fields import Field, Support
from inference.wire.ollama import chat as ollama_chat
from inference.wire.ollama import models as ollama_models
from inference.wire.openai import batches as openai_batches
from inference.wire.openai import chat as openai_chat
from inference.wire.openai import completions as openai_completions
from inference.wire.openai.passed import ENDPOINTS, METERED_FIELDS, PassedEndpoint
from inference.wire.responses import request as openai_responses
from inference.wire.responses.history import COMPACT_FIELDS

Fields = Mapping[str, Field]


def _nested(title: str, objects: Mapping[str, Fields]) -> dict[str, Fields]:
    return {f"{title}: {what}": fields for what, fields in objects.items()}


DIALECTS: dict[str, Fields] = {
    "POST /v1/chat/completions": openai_chat.FIELDS,
    **_nested("POST /v1/chat/completions", openai_chat.NESTED_FIELDS),
    "POST /v1/completions": openai_completions.FIELDS,
    "POST /v1/messages": anthropic_messages.FIELDS,
    **_nested("POST /v1/messages", anthropic_messages.NESTED_FIELDS),
    "POST /v1/messages/count_tokens": anthropic_messages.COUNT_FIELDS,
    "POST /api/chat": ollama_chat.FIELDS,
    **_nested("POST /api/chat", ollama_chat.NESTED_FIELDS),
    "POST /api/generate": ollama_chat.GENERATE_FIELDS,
    "POST /api/embed": embeddings.OLLAMA_FIELDS,
    "POST /api/embeddings": embeddings.OLD_OLLAMA_FIELDS,
    "POST /api/show": ollama_models.SHOW_FIELDS,
    "POST /api/pull": ollama_models.PULL_FIELDS,
    "POST /tokenize": vllm.TOKENIZE_FIELDS,
    "POST /detokenize": vllm.DETOKENIZE_FIELDS,
    "POST /v1/embeddings": embeddings.OPENAI_FIELDS,
    "POST /v1/batches": openai_batches.BATCH_FIELDS,
    "POST /v1/batches: a line of the input file": openai_batches.LINE_FIELDS,
    "POST /v1/messages/batches": anthropic_batches.FIELDS,
    "POST /v1/messages/batches: requests": anthropic_batches.REQUEST_FIELDS,
    "POST /v1/rerank and /v2/rerank": vllm.RERANK_FIELDS,
    "POST /v1/score": vllm.SCORE_FIELDS,
    "POST /v1/responses": openai_responses.FIELDS,
    **_nested("POST /v1/responses", openai_responses.NESTED_FIELDS),
    "WebSocket /v1/responses: beside the fields of POST": openai_responses.SOCKET_FIELDS,
    "POST /v1/responses/compact": COMPACT_FIELDS,
    "POST /v1/responses/input_tokens": openai_responses.COUNT_FIELDS,
}
SAMPLES: dict[str, Any] = {
    "boolean": True,
    "integer": 1,
    "number": 0.5,
    "string": "x",
    "array": ["x"],
    "object": {"x": "x"},
}
CALLS = {
    "/v1/chat/completions": "OpenAI's chat completions.",
    "/v1/completions": "OpenAI's text completions.",
    "/v1/responses": "OpenAI's responses.",
    "/v1/responses/compact": "A conversation made shorter.",
    "/v1/responses/input_tokens": "How many tokens a response's input has.",
    "/v1/messages": "Anthropic's messages.",
    "/v1/messages/count_tokens": "How many tokens a message's prompt has.",
    "/v1/messages/batches": "Many messages at once, when there is room.",
    "/v1/embeddings": "Texts as vectors.",
    "/v1/rerank": "Documents by relevance, in Cohere's and Jina's shape.",
    "/v2/rerank": "The same, in Cohere's second shape.",
    "/v1/score": "Scores of pairs of texts, in vLLM's shape.",
    "/v1/batches": "A file of requests, run when there is room.",
    "/tokenize": "The tokens of a text or a chat, in vLLM's shape.",
    "/detokenize": "The text of tokens, in vLLM's shape.",
    "/api/chat": "Ollama's chat.",
    "/api/generate": "Ollama's completions.",
    "/api/embed": "Ollama's embeddings.",
    "/api/embeddings": "Ollama's embeddings, in their older shape.",
    "/api/show": "One model, in Ollama's shape.",
    "/api/pull": "A download to a neuron, for keys with fleet:write.",
}
READS = {
    "/v1/models": "What is offered.",
    "/v1/models/{id}": "One model.",
    "/v1/responses/{id}": "A stored response.",
    "/v1/files": "The account's files.",
    "/v1/files/{id}": "One file.",
    "/v1/files/{id}/content": "What is in it.",
    "/v1/batches": "The account's batches.",
    "/v1/batches/{id}": "One batch.",
    "/v1/messages/batches": "The account's message batches.",
    "/v1/messages/batches/{id}": "One message batch.",
    "/v1/messages/batches/{id}/results": "Its results, a line for each request.",
    "/api/tags": "What is offered, in Ollama's shape.",
    "/api/ps": "What is loaded, in Ollama's shape.",
    "/api/version": "Of Ollama's API.",
    "/tokenizer_info": "The settings of `model`'s tokenizer.",
    "/health": "Whether this gateway can answer.",
    "/ping": "The same.",
}
MODEL = ("model", "A catalogue model of the endpoint's task, or an alias.")
ERROR = {"description": "Refused or failed: docs/api.md lists the codes."}


def document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    for title, fields in DIALECTS.items():
        schemas[_name(title)] = _schema(fields)
        head, nested, _ = title.partition(": ")
        method, _, where = head.partition(" ")
        if method == "POST" and not nested:
            for path in _paths(where):
                paths.setdefault(path, {})["post"] = _operation(title, CALLS[path])
    for endpoint in ENDPOINTS:
        paths[endpoint.path] = {"post": _passed(endpoint)}
    for path, summary in READS.items():
        read: dict[str, Any] = {"summary": summary, "responses": _responses()}
        if "{id}" in path:
            identity = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
            read["parameters"] = [identity]
        paths.setdefault(path, {})["get"] = read
    return {
        "openapi": "3.1.0",
        "info": {"title": "helexa", "version": VERSION},
        "security": [{"bearer": []}, {"key": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def document_bytes() -> bytes:
    return orjson.dumps(document(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def types_of(field: Field) -> list[str]:
    """Includes types whose value is refused for another reason."""
    taken = [name for name, value in SAMPLES.items() if _takes(field, value)]
    return [name for name in taken if not (name == "integer" and "number" in taken)]


def _takes(field: Field, value: Any) -> bool:
    try:
        field.check(value, field.name)
    except InvalidTypeError as error:
        return error.param != field.name
    except ApiError:
        return True
    return True


def _schema(fields: Mapping[str, Field]) -> dict[str, Any]:
    properties = {name: _property(field) for name, field in sorted(fields.items())}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": field.note, "x-support": field.support.value}
    if field.support is Support.REFUSED:
        return schema | {"type": "null", "deprecated": True}
    return schema | {"type": [*types_of(field), "null"]}


def _operation(title: str, summary: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{_name(title)}"}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": _responses(),
    }


def passed_summary(endpoint: PassedEndpoint) -> str:
    return f"Passed through to an upstream: OpenAI's {endpoint.path}."


def passed_fields(endpoint: PassedEndpoint) -> tuple[tuple[str, str], ...]:
    return (MODEL, *METERED_FIELDS.get(endpoint.path, ()))


def _passed(endpoint: PassedEndpoint) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {name: {"description": note} for name, note in passed_fields(endpoint)},
        "required": ["model"],
        "additionalProperties": True,
    }
    kind = "multipart/form-data" if endpoint.is_form else "application/json"
    return {
        "summary": passed_summary(endpoint),
        "requestBody": {"required": True, "content": {kind: {"schema": schema}}},
        "responses": _responses(),
    }


def _responses() -> dict[str, Any]:
    return {"200": {"description": "The answer."}, "default": ERROR}


def _paths(where: str) -> list[str]:
    return [path.strip() for path in where.split(" and ")]


def _name(title: str) -> str:
    words = "".join(character if character.isalnum() else " " for character in title).split()
    return "_".join(words)
