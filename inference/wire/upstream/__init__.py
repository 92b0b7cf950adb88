"""Encodes our request as an upstream's body, and decodes its answer to our events.

Untranslated fields are refused by the client's names, but not values that change nothing, which
clients send: ``docs/decisions/0050-translated-for-upstreams.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from inference.protocol.generation import (
    NEUTRAL_VALUES,
    THINKING_SWITCHES,
    ChatInput,
    GenerationRequest,
    OutputFormat,
    SamplingOptions,
    ToolCall,
    ToolDefinition,
)
from inference.wire.errors import ApiError, InvalidRequestError, UnsupportedParameterError
from inference.wire.images import ImageFile

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    model: str
    images: Mapping[str, ImageFile] = field(default_factory=dict)
    max_tokens: int | None = None
    context_tokens: int | None = None
    host: str = ""


def tool_of(tool: ToolDefinition, *, parameters: str, shows_strict: bool = True) -> dict[str, Any]:
    """``parameters``: the dialect's name of the arguments' schema."""
    made: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        made["description"] = tool.description
    made[parameters] = tool.parameters or NO_PARAMETERS
    if tool.strict and shows_strict:
        made["strict"] = True
    return made


def arguments_of(call: ToolCall) -> orjson.Fragment:
    """The standard library writes numbers of any size."""
    return orjson.Fragment(json.dumps(call.arguments_object, ensure_ascii=False))


def thinking_of(chat: ChatInput) -> bool | None:
    return chat.wants_thinking if chat.template_kwargs else chat.thinking


BY_UPSTREAM = "the model is served by an upstream, for which it is not translated"


def refuse(asked: Mapping[str, bool]) -> None:
    for name, is_asked in asked.items():
        if is_asked:
            raise UnsupportedParameterError(name, BY_UPSTREAM)


def refuse_unknown(request: GenerationRequest, options: Iterable[str] = ()) -> None:
    """Refuses fields that no upstream's dialect has, and ``options`` that this one has not."""
    sampling = request.sampling
    refuse(
        {
            "return_token_ids": request.returns_token_ids,
            "prompt_logprobs": sampling.prompt_logprobs is not None,
            "repetition_window": sampling.repetition_window is not None,
            "echo": request.echo,
            **{name: is_set(sampling, name) for name in options},
        }
    )


def refuse_template(chat: ChatInput) -> None:
    """Refuses fields that need the chat's template on the server."""
    refuse(
        {
            "chat_template_kwargs": bool(chat.template_kwargs.keys() - set(THINKING_SWITCHES)),
            "add_generation_prompt": not (chat.adds_generation_prompt or chat.answer_start),
        }
    )


def is_set(options: SamplingOptions, name: str) -> bool:
    value = getattr(options, name)
    if name in NEUTRAL_VALUES:
        return value is not None and value != NEUTRAL_VALUES[name]
    return value is not None if name in ("seed", "top_logprobs") else bool(value)


def refuse_format(
    wanted: OutputFormat | None, *, allows_json: bool, needs_schema: bool = False
) -> None:
    """``needs_schema``: the dialect lacks JSON of any form."""
    if wanted is None:
        return
    if not (wanted.is_json and allows_json):
        raise UnsupportedParameterError(wanted.path, BY_UPSTREAM)
    if needs_schema and not isinstance(wanted.schema, dict):
        raise UnsupportedParameterError(
            wanted.path, "the model is served by an upstream that takes JSON by a schema alone"
        )


def not_forwarded(model: str, upstream: str, dialect: str) -> ApiError:
    return InvalidRequestError(
        f"{model} is served by an upstream: of requests to {upstream}, whose dialect is {dialect}, "
        "those of this kind are not translated.",
        param="model",
    )
