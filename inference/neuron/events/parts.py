"""Events as entries of bounded size: large ones in parts, small ones together. Pure.

Embedded ─▶ EmbeddedPart … Embedded      Delta, PromptScored, OutputTokens ─▶ several of their kind
any other ─▶ Fragment … Fragment
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from inference.protocol.events import (
    Delta,
    Embedded,
    EmbeddedPart,
    Event,
    Fragment,
    OutputTokens,
    PromptScored,
    TextLogprob,
    encode_event,
)

Item = TypeVar("Item")
OVERHEAD_BYTES = 1024
"""The bytes of an event beside the list or the text that makes it large."""
MAX_CHARACTER_BYTES = 4


def batches_within(max_bytes: int, events: Sequence[Event]) -> Iterator[list[Event]]:
    """The events in their order, each list of at most ``max_bytes`` in msgpack."""
    batch: list[Event] = []
    num_bytes = 0
    for event in events:
        for part, part_bytes in _parts(event, max_bytes):
            if batch and num_bytes + part_bytes > max_bytes:
                yield batch
                batch, num_bytes = [], 0
            batch.append(part)
            num_bytes += part_bytes
    if batch:
        yield batch


def _parts(event: Event, max_bytes: int) -> Iterator[tuple[Event, int]]:
    """Each with its length in msgpack."""
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
            *groups, last = _groups(event.vectors, max_bytes, len)
            for vectors in groups:
                yield EmbeddedPart(request_id=event.request_id, vectors=vectors)
            yield msgspec.structs.replace(event, vectors=last)
        case Delta():
            yield from _deltas(event, max_bytes)
        case PromptScored():
            for tokens in _groups(event.tokens, max_bytes, _msgpack_bytes):
                yield msgspec.structs.replace(event, tokens=tokens)
        case OutputTokens():
            for token_ids in _groups(event.token_ids, max_bytes, _msgpack_bytes):
                yield msgspec.structs.replace(event, token_ids=token_ids)
        case _:
            yield event


def _deltas(event: Delta, max_bytes: int) -> Iterator[Delta]:
    """The text first. The last one counts the tokens."""
    step = max_bytes // MAX_CHARACTER_BYTES
    texts = [event.text[start : start + step] for start in range(0, len(event.text), step)]
    logprobs: list[list[TextLogprob]] = []
    if event.logprobs:
        logprobs = list(_groups(event.logprobs, max_bytes, _msgpack_bytes))
    parts = [
        *(msgspec.structs.replace(event, text=text, num_tokens=0, logprobs=None) for text in texts),
        *(
            msgspec.structs.replace(event, text="", num_tokens=0, logprobs=some)
            for some in logprobs
        ),
    ]
    yield from parts[:-1]
    yield msgspec.structs.replace(parts[-1], num_tokens=event.num_tokens)


def _fragments(request_id: str, data: bytes, max_bytes: int) -> Iterator[tuple[Fragment, int]]:
    for start in range(0, len(data), max_bytes):
        piece, end = data[start : start + max_bytes], start + max_bytes
        fragment = Fragment(request_id=request_id, data=piece, is_last=end >= len(data))
        yield fragment, len(piece) + OVERHEAD_BYTES


def _groups(
    items: Sequence[Item], max_bytes: int, num_bytes_of: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Yields groups of up to ``max_bytes``, with at least one item each."""
    group: list[Item] = []
    num_bytes = 0
    for item in items:
        item_bytes = num_bytes_of(item) + ITEM_OVERHEAD_BYTES
        if group and num_bytes + item_bytes > max_bytes:
            yield group
            group, num_bytes = [], 0
        group.append(item)
        num_bytes += item_bytes
    yield group


ITEM_OVERHEAD_BYTES = 5
"""The header of a byte string in msgpack."""


def _msgpack_bytes(item: Any) -> int:
    return len(msgspec.msgpack.encode(item))
