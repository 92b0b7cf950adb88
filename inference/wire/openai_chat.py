"""OpenAI's chat completions dialect: bytes in, one request out; events in, frames out.

    parse(body) ─▶ ChatRequest(generation, stream, include_usage)
    ChatStreamEncoder.encode(event) ─▶ SSE frames       role chunk, deltas, finish, usage, [DONE]
    ChatBodyEncoder.encode(event) ─▶ b"" … one body     a fold over the same events

Source: https://platform.openai.com/docs/api-reference/chat. Pure: ids and times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    TextLogprob,
    Usage,
)
from inference.protocol.generation import ChatInput, GenerationRequest
from inference.wire import openai_sampling
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.errors import InvalidRequestError
from inference.wire.fields import (
    flag,
    honoured,
    integer,
    json_object,
    neutral,
    only,
    read_fields,
    read_json_object,
    refused,
    table,
    text,
)
from inference.wire.openai_messages import messages

MAX_TOP_LOGPROBS = 20
LEAST_LOGPROB = -9999.0
"""What the API says for a token that is as good as impossible; JSON has no infinity."""

DONE_FRAME = b"data: [DONE]\n\n"

FIELDS = table(
    *openai_sampling.SHARED_FIELDS,
    honoured("messages", messages, "At least one turn; text only."),
    honoured(
        "max_completion_tokens",
        integer(1, openai_sampling.MAX_TOKENS),
        "The newer name of max_tokens.",
    ),
    honoured("logprobs", flag, "Log probabilities of the output tokens."),
    honoured("top_logprobs", integer(0, MAX_TOP_LOGPROBS), "0 to 20; only with logprobs."),
    honoured("chat_template_kwargs", json_object, "Extension; handed to the chat template."),
    neutral("metadata", openai_sampling.metadata, "Labels; kept nowhere."),
    neutral("safety_identifier", text(128), "A label; kept nowhere."),
    neutral("prompt_cache_key", text(1024), "Prefixes are shared by content, without a key."),
    neutral("prompt_cache_retention", only("in_memory", reason="only in_memory"), "in_memory"),
    neutral("store", only(False, reason="answers are not stored; only false"), "false"),
    neutral("service_tier", only("auto", "default", reason="only auto or default"), "auto"),
    neutral("modalities", only(["text"], reason="only text is generated"), '["text"]'),
    neutral("verbosity", only("medium", reason="only medium, the default"), "medium"),
    neutral("response_format", only({"type": "text"}, reason="only type text"), "type text"),
    neutral("tools", only([], reason="tools are not offered yet"), "[]"),
    neutral("tool_choice", only("none", "auto", reason="tools are not offered yet"), "none, auto"),
    neutral("parallel_tool_calls", flag, "Means nothing without tools."),
    neutral("functions", only([], reason="functions are not offered"), "[]"),
    neutral("function_call", only("none", "auto", reason="functions are not offered"), "none"),
    refused("audio", "audio is not generated"),
    refused("moderation", "nothing is moderated here"),
    refused("prediction", "predicted outputs are not used"),
    refused("prompt_cache_options", "the prefix cache has no options"),
    refused("reasoning_effort", "no model here takes an effort"),
    refused("web_search_options", "there is no web search"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    generation: GenerationRequest
    stream: bool
    include_usage: bool

    def stream_encoder(self, *, request_id: str, created_unix_s: int) -> ChatStreamEncoder:
        return ChatStreamEncoder(self, request_id, created_unix_s)

    def body_encoder(self, *, request_id: str, created_unix_s: int) -> ChatBodyEncoder:
        return ChatBodyEncoder(self, request_id, created_unix_s)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> ChatRequest:
    """Raises ``ApiError`` (400) for everything that is not a request this server honours whole."""
    read = read_fields(read_json_object(body), FIELDS, required=("model", "messages"))
    generation = GenerationRequest(
        model=read["model"],
        input=ChatInput(
            messages=read["messages"], template_kwargs=read.get("chat_template_kwargs", {})
        ),
        sampling=openai_sampling.sampling_options(
            read, max_tokens=_max_tokens(read), top_logprobs=_top_logprobs(read)
        ),
        stop=read.get("stop", []),
    )
    return ChatRequest(
        generation=generation,
        stream=read.get("stream", False),
        include_usage=openai_sampling.includes_usage(read, context),
    )


def _max_tokens(read: dict[str, Any]) -> int | None:
    old: int | None = read.get("max_tokens")
    new: int | None = read.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidRequestError(
            f"'max_tokens' ({old}) and 'max_completion_tokens' ({new}) differ; give one of them.",
            param="max_tokens",
        )
    return old if new is None else new


def _top_logprobs(read: dict[str, Any]) -> int | None:
    top: int | None = read.get("top_logprobs")
    if read.get("logprobs", False):
        return top or 0
    if top:
        raise InvalidRequestError(
            "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs"
        )
    return None


class ChatStreamEncoder:
    """One request's events as server-sent events, at most one chunk for each delta."""

    def __init__(self, request: ChatRequest, request_id: str, created_unix_s: int) -> None:
        head = {
            "id": f"chatcmpl-{request_id}",
            "object": "chat.completion.chunk",
            "created": created_unix_s,
            "model": request.generation.model,
        }
        self._include_usage = request.include_usage
        self._start = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._content = self._start + b'{"index":0,"delta":{"content":'
        self._content_end = b'},"logprobs":null,"finish_reason":null}' + self._end

    def encode(self, event: Event) -> bytes:
        match event:
            case Delta(logprobs=None):
                if not event.text:
                    return b""
                return self._content + orjson.dumps(event.text) + self._content_end
            case Delta():
                return self._choice({"content": event.text}, logprobs=_logprobs(event.logprobs))
            case Accepted():
                return self._choice({"role": "assistant", "content": "", "refusal": None})
            case ChoiceFinished():
                return self._choice({}, finish_reason=event.reason)
            case Finished():
                return self._last(event.usage)
        return b""

    def _choice(
        self,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return self._start + orjson.dumps(choice) + self._end

    def _last(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE_FRAME
        return (
            self._start + b'],"usage":' + orjson.dumps(usage_object(usage)) + b"}\n\n" + DONE_FRAME
        )


class ChatBodyEncoder:
    """The same events folded into one body, which the last one completes."""

    def __init__(self, request: ChatRequest, request_id: str, created_unix_s: int) -> None:
        self._head = {
            "id": f"chatcmpl-{request_id}",
            "object": "chat.completion",
            "created": created_unix_s,
            "model": request.generation.model,
        }
        self._texts: list[str] = []
        self._finish_reason = ""
        self._logprobs: list[TextLogprob] | None = (
            None if request.generation.sampling.top_logprobs is None else []
        )

    def encode(self, event: Event) -> bytes:
        match event:
            case Delta():
                self._texts.append(event.text)
                if self._logprobs is not None:
                    self._logprobs.extend(event.logprobs or ())
            case ChoiceFinished():
                self._finish_reason = event.reason
            case Finished():
                return self._body(event)
        return b""

    def _body(self, finished: Finished) -> bytes:
        choice = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "".join(self._texts),
                "refusal": None,
            },
            "logprobs": None if self._logprobs is None else _logprobs(self._logprobs),
            "finish_reason": self._finish_reason,
        }
        return orjson.dumps(
            {**self._head, "choices": [choice], "usage": usage_object(finished.usage)}
        )


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _logprobs(tokens: list[TextLogprob] | None) -> dict[str, Any]:
    content = [
        {
            **_token(token.token, token.token_bytes, token.logprob),
            "top_logprobs": [_token(*candidate) for candidate in token.top],
        }
        for token in tokens or ()
    ]
    return {"content": content, "refusal": None}


def _token(token: str, token_bytes: bytes, logprob: float) -> dict[str, Any]:
    return {
        "token": token,
        "logprob": max(logprob, LEAST_LOGPROB),
        "bytes": list(token_bytes),
    }
