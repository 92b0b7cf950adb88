"""Parts of HTTP messages that no dialect has: this server's own headers of answers, and bodies.

``X-Helexa-Advice``: what to set in a client that hit the context limit, by its family
(``metrics.client_family``), for readers of logs. ``X-Helexa-Ignored``: the fields that were
ignored.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import IO, TypeVar, cast
from urllib.parse import quote

from inference.wire.errors import ApiError, InvalidRequestError, RequestTooLargeError
from inference.wire.fields import shown

AS_IT_IS = b"identity"
MAX_IN_MEMORY_BYTES = 1024 * 1024
LARGE_BODY_BYTES = 128 * 1024
"""Parsing less takes a few milliseconds at most; a thread costs a tenth of one."""

PIECE_BYTES = 64 * 1024
FILE_PIECE_BYTES = 256 * 1024

Parsed = TypeVar("Parsed")

IGNORED = b"x-helexa-ignored"
MAX_NAMED = 32
MAX_NAME_CHARS = 128
ADVISED = b"x-helexa-advice"
WHERE = "The numbers to set are in limit of GET /v1/models."
ADVICE = {
    "claude-code": "Claude Code: set CLAUDE_CODE_MAX_CONTEXT_TOKENS to the model's context and "
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS to what of it answers may take, then /compact.",
    "opencode": "opencode: set provider.<id>.models.<model>.limit.context and .output in "
    "opencode.json.",
    "zed": "Zed: set max_tokens (the context) and max_output_tokens of the model in "
    "language_models.<provider>.available_models of settings.json.",
    "open-webui": "Open WebUI: it sends the whole chat; add a filter function that clips the "
    "context, or start a new chat.",
    "agent-zero": "Agent Zero: set the chat model's context length in its settings, and the share "
    "of it that the chat history may take.",
    "litellm": "LiteLLM: set model_info.max_input_tokens of the model and "
    "router_settings.enable_pre_call_checks: true.",
    "ai-sdk": "AI SDK: it has no setting for the context; shorten the messages in prepareStep, or "
    "with pruneMessages before the call.",
}


def advice_headers(client: str, error: ApiError) -> list[tuple[bytes, bytes]]:
    if error.code != "context_length_exceeded" or client not in ADVICE:
        return []
    return [(ADVISED, f"{ADVICE[client]} {WHERE}".encode("ascii"))]


def ignored_headers(paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Names are the client's own text: what a header cannot carry is percent-encoded."""
    if not paths:
        return []
    named = [quote(one[:MAX_NAME_CHARS], safe="[]", errors="replace") for one in paths[:MAX_NAMED]]
    if len(paths) > MAX_NAMED:
        named.append(f"and {len(paths) - MAX_NAMED} more")
    return [(IGNORED, ", ".join(named).encode("ascii"))]


def spooled_file() -> IO[bytes]:
    """It is deleted when it is closed or collected."""
    return cast(IO[bytes], tempfile.SpooledTemporaryFile(MAX_IN_MEMORY_BYTES))


def pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(FILE_PIECE_BYTES):
        yield piece


def check_body_headers(headers: Sequence[tuple[bytes, bytes]], max_body_bytes: int) -> None:
    """Raises ``ApiError``."""
    declared = dict(headers)
    if (encoding := declared.get(b"content-encoding", AS_IT_IS)).lower() != AS_IT_IS:
        raise InvalidRequestError(
            f"The body's Content-Encoding is {shown(encoding.decode('latin-1'))!r}; bodies are "
            "read as they are here, without one."
        )
    length = declared.get(b"content-length", b"0")
    if length.isdigit() and int(length) > max_body_bytes:
        raise RequestTooLargeError(max_body_bytes)


async def parse_aside(parse: Callable[[], Parsed], num_bytes: int) -> Parsed:
    if num_bytes > LARGE_BODY_BYTES:
        return await asyncio.to_thread(parse)
    return parse()


async def send_in_pieces(parts: Sequence[bytes], send: Callable[..., Awaitable[None]]) -> None:
    pending = b""
    for part in parts:
        pending += part
        starts = range(0, len(pending) - PIECE_BYTES, PIECE_BYTES)
        for start in starts:
            await send(pending[start : start + PIECE_BYTES], last=False)
            await asyncio.sleep(0)
        pending = pending[len(starts) * PIECE_BYTES :]
    await send(pending, last=True)
