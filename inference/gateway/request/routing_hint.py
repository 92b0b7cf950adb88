"""Distinguishes a request's conversation from others before it has been tokenized.

    model, whose cache ─▶ hash ─▶ … first user message ─▶ hint ─▶ … second ─▶ hint ─▶ … fourth ─▶ …
                                  └ where it is long: its beginning ─▶ hint

The first hint is shared by all turns of a conversation, so they go to the same replica. The further
ones distinguish conversations that begin with the same words: so do prompts of one long message
that ask different things of the same text. Pure.
"""

from __future__ import annotations

import hashlib

from fleet.placement import RoutingHint
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    Request,
    TextInput,
    TokensInput,
)

DIGEST_BYTES = 16
FIRST_CHARACTERS = 1024
"""How much of a prompt, or of a chat's first message, makes its first hint. Of one that is no chat
each further one takes four times as much."""
MAX_HINTS = 4


def routing_hint(request: Request, *, model: str, salt: str) -> RoutingHint:
    """``salt``: whose prefix cache it is, the account's. Requests without a prefix to find again
    have no hints."""
    if not isinstance(request, GenerationRequest):
        return RoutingHint()
    running = hashlib.blake2b(f"{len(model)}/{model}/{salt}".encode(), digest_size=DIGEST_BYTES)
    match request.input:
        case ChatInput(messages=messages):
            return RoutingHint(_of_messages(running, messages))
        case TextInput(texts=texts):
            return RoutingHint(_of_text(running, texts[0]))
        case TokensInput(prompts=prompts):
            longest = FIRST_CHARACTERS * 4 ** (MAX_HINTS - 1)
            return RoutingHint(_of_text(running, ",".join(map(str, prompts[0][:longest]))))


def _of_messages(running: hashlib.blake2b, messages: list[ChatMessage]) -> tuple[bytes, ...]:
    """Returns digests after the first, second, fourth … message of the user, and after the
    beginning of the first one where that is longer."""
    hints: list[bytes] = []
    num_of_user, next_of_user = 0, 1
    for message in messages:
        if message.role == "user" and not num_of_user and (start := _start(message)):
            beginning = running.copy()
            beginning.update(start)
            hints.append(beginning.digest())
        running.update(_words(message))
        if message.role != "user":
            continue
        num_of_user += 1
        if num_of_user == next_of_user:
            next_of_user *= 2
            hints.append(running.copy().digest())
            if len(hints) == MAX_HINTS:
                return tuple(hints)
    return tuple(hints) or (running.digest(),)


def _start(message: ChatMessage) -> bytes:
    """Returns the beginning of a long message; empty for others, and for one with images, which
    stand anywhere in it."""
    content = message.content or ""
    if len(content) <= FIRST_CHARACTERS or message.images:
        return b""
    return content[:FIRST_CHARACTERS].encode(errors="replace")


def _words(message: ChatMessage) -> bytes:
    content = message.content or ""
    images = "".join(f"/{image.digest}" for image in message.images)
    return f"{message.role}/{len(content)}/{content}{images}".encode()


def _of_text(running: hashlib.blake2b, text: str) -> tuple[bytes, ...]:
    hints: list[bytes] = []
    start, length = 0, FIRST_CHARACTERS
    while len(hints) < MAX_HINTS and (start < len(text) or not hints):
        running.update(text[start:length].encode(errors="replace"))
        hints.append(running.copy().digest())
        start, length = length, 4 * length
    return tuple(hints)
