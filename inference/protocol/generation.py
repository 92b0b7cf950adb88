"""One internal request, whatever dialect it came in, and the neuron inbox frames that carry it."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.protocol.sampling import SamplingOptions


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn. ``content`` is the joined text of the turn's text parts, or ``None`` for an
    assistant turn that only called tools."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="chat"):
    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = {}


class TextInput(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class TokensInput(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    token_ids: list[int]


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A parsed, validated request for text. Dialect-free: the same struct from every parser."""

    model: str
    """The name the client used: a catalogue model's name or an alias."""
    input: ChatInput | TextInput | TokensInput
    sampling: SamplingOptions = SamplingOptions()
    stop: list[str] = []
    """Stop strings; matched in the text, held back, never emitted."""
    echo: bool = False
    """Completions only: the prompt's text comes before the answer's."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """Gateway to neuron: run this. ``model`` is the catalogue name that placement resolved."""

    request_id: str
    gateway_id: str
    model: str
    request: GenerationRequest
    deadline_unix_s: float
    """After this the neuron refuses to start it: whoever asked has given up."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Gateway to neuron: stop this request and free what it holds. Unknown ids are ignored."""

    request_id: str


InboxFrame = Submit | Cancel
"""One element of a neuron's inbox list, msgpack with a ``type`` tag."""

encode_inbox_frame = msgspec.msgpack.Encoder().encode
decode_inbox_frame = msgspec.msgpack.Decoder(InboxFrame).decode
