"""Splits events into batches of bounded size: a gateway reads a large answer piece by piece.

Embedded ─▶ EmbeddedPart … Embedded   Delta, PromptScored ─▶ several of their kind
any other ─▶ Fragment … Fragment
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from inference.protocol.events import (
    Delta,
    Embedded,
    EmbeddedPart,
    Event,
    Fragment,
    PromptScored,
    encode_event,
)

Item = TypeVar("Item")
OVERHEAD_BYTES = 1024
MAX_CHARACTER_BYTES = 4


def batches_within(max_bytes: int, events: Sequence[Event]) -> Iterator[list[Event]]:
    """``max_bytes``: of each batch in msgpack."""
    return _groups((part for event in events for part in _parts(event, max_bytes)), max_bytes)


def _parts(event: Event, max_bytes: int) -> Iterator[tuple[Event, int]]:
    """Each part with its length in msgpack."""
    data = encode_event(event)
    if len(data) <= max_bytes:
        yield event, len(data)
        return
    for part in _parts_of_its_kind(event, max_bytes - OVERHEAD_BYTES):
        data = encode_event(part)
        if len(data) <= max_bytes:
            yield part, len(data)
        else:
            yield from _fragments(part.request_id, data, max_bytes - OVERHEAD_BYTES)


def _parts_of_its_kind(event: Event, max_bytes: int) -> Iterator[Event]:
    match event:
        case Embedded():
            *groups, last = _groups(_with_bytes(event.vectors), max_bytes)
            for vectors in groups:
                yield EmbeddedPart(request_id=event.request_id, vectors=vectors)
            yield msgspec.structs.replace(event, vectors=last)
        case PromptScored():
            for tokens in _groups(_with_bytes(event.tokens), max_bytes):
                yield msgspec.structs.replace(event, tokens=tokens)
        case Delta():
            step = max_bytes // MAX_CHARACTER_BYTES
            texts = [event.text[start : start + step] for start in range(0, len(event.text), step)]
            bare = msgspec.structs.replace(event, text="", num_tokens=0, logprobs=None)
            parts = [msgspec.structs.replace(bare, text=text) for text in texts]
            for some in _groups(_with_bytes(event.logprobs or []), max_bytes):
                parts.append(msgspec.structs.replace(bare, logprobs=some))
            yield from parts[:-1]
            yield msgspec.structs.replace(parts[-1], num_tokens=event.num_tokens)
        case _:
            yield event


def _fragments(request_id: str, data: bytes, max_bytes: int) -> Iterator[tuple[Fragment, int]]:
    for start in range(0, len(data), max_bytes):
        piece, end = data[start : start + max_bytes], start + max_bytes
        fragment = Fragment(request_id=request_id, data=piece, is_last=end >= len(data))
        yield fragment, len(piece) + OVERHEAD_BYTES


def _with_bytes(items: Iterable[Item]) -> Iterator[tuple[Item, int]]:
    return ((item, len(msgspec.msgpack.encode(item))) for item in items)


def _groups(items: Iterable[tuple[Item, int]], max_bytes: int) -> Iterator[list[Item]]:
    group: list[Item] = []
    num_bytes = 0
    for item, item_bytes in items:
        if group and num_bytes + item_bytes > max_bytes:
            yield group
            group, num_bytes = [], 0
        group.append(item)
        num_bytes += item_bytes
    if group:
        yield group
