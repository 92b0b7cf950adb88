"""Event batches on their way to the gateways: split into entries of bounded size, and kept in the
order of their numbers until Redis acknowledges them.

    Embedded ─▶ EmbeddedPart … Embedded   Delta, PromptScored, OutputTokens ─▶ several of their kind
    any other ─▶ Fragment … Fragment

    add ─▶ batches ─take─▶ on their way ─┬─ acknowledged     gone
                 ▲                       └─ no answer ───────┐
                 └───────────────────────────────────────────┘
           too old, too many bytes ─▶ the gateway's batches are given up, all of them

What Redis has and the gateway has not read is bounded, since Redis has no bound of bytes for a
stream: further batches wait here. ``UnreadEntries`` counts it for one gateway.

    acknowledged ─▶ marks of 64 KiB, each with its last entry's id ─▶ gone when the stream begins
                                                                      behind that id

A gap in the numbers makes whatever follows it worthless, so a gateway's batches are given up
together. Pure: knows no Redis, no thread and no clock.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
ITEM_OVERHEAD_BYTES = 5


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
    """The event, or its parts if it is too long, each with its length in msgpack."""
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


def _msgpack_bytes(item: Any) -> int:
    return len(msgspec.msgpack.encode(item))


MAX_UNREAD_BYTES = 8 * 1024 * 1024
"""The most unread bytes in one gateway's stream: more is sent when the gateway has read some."""
CROWDED_BYTES = MAX_UNREAD_BYTES // 2
"""The unread bytes from which on the writer counts what has been read, so that little traffic never
waits for it."""
MARK_BYTES = 64 * 1024

EntryId = tuple[int, int]


@dataclass(slots=True)
class _Mark:
    last_id: EntryId
    num_bytes: int


@dataclass(slots=True)
class UnreadEntries:
    num_bytes: int = 0
    _marks: deque[_Mark] = field(default_factory=deque)

    @property
    def is_crowded(self) -> bool:
        return self.num_bytes > CROWDED_BYTES

    def has_room_for(self, num_bytes: int) -> bool:
        """An entry of any size has room in an empty stream."""
        return not self.num_bytes or self.num_bytes + num_bytes <= MAX_UNREAD_BYTES

    def add(self, entry_id: bytes, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        last = self._marks[-1] if self._marks else None
        if last is not None and last.num_bytes + num_bytes <= MARK_BYTES:
            last.last_id = _parsed(entry_id)
            last.num_bytes += num_bytes
        else:
            self._marks.append(_Mark(_parsed(entry_id), num_bytes))

    def begins_at(self, entry_id: bytes | None) -> None:
        """``entry_id``: of the stream's first entry, before which the gateway has taken all away;
        ``None``: it has none."""
        first_id = None if entry_id is None else _parsed(entry_id)
        while self._marks and (first_id is None or self._marks[0].last_id < first_id):
            self.num_bytes -= self._marks.popleft().num_bytes


def _parsed(entry_id: bytes) -> EntryId:
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number)


MAX_KEPT_BYTES = 64 * 1024 * 1024
"""The most that is kept for all gateways: half a minute of a thousand streams."""
MAX_TAKEN = 64
MAX_TAKEN_BYTES = 4 * 1024 * 1024
"""The most bytes taken at one time: what Redis answers well within a command's timeout."""


@dataclass(frozen=True, slots=True)
class Batch:
    gateway_id: str
    data: bytes
    added_s: float


@dataclass(slots=True)
class _Outbox:
    batches: deque[Batch] = field(default_factory=deque)
    num_bytes: int = 0
    is_blocked: bool = False


class Outboxes:
    def __init__(self, *, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._by_gateway: dict[str, _Outbox] = {}
        self._unread: defaultdict[str, UnreadEntries] = defaultdict(UnreadEntries)

    def __bool__(self) -> bool:
        return bool(self._by_gateway)

    @property
    def num_bytes(self) -> int:
        return sum(outbox.num_bytes for outbox in self._by_gateway.values())

    def add(self, batch: Batch) -> None:
        outbox = self._by_gateway.setdefault(batch.gateway_id, _Outbox())
        outbox.batches.append(batch)
        outbox.num_bytes += len(batch.data)

    def take(self) -> list[Batch]:
        """The oldest batches of gateways that are not blocked and have room. They stay here until
        they are acknowledged."""
        taken: list[Batch] = []
        num_bytes = 0
        for batch in self._sendable():
            num_bytes += len(batch.data)
            if taken and (len(taken) == MAX_TAKEN or num_bytes > MAX_TAKEN_BYTES):
                break
            taken.append(batch)
        return taken

    def crowded(self) -> list[str]:
        """Gateways that have batches here and so many unread bytes that they should be counted
        again."""
        return [name for name in self._by_gateway if self._unread[name].is_crowded]

    def begins_at(self, gateway_id: str, entry_id: bytes | None) -> None:
        self._unread[gateway_id].begins_at(entry_id)

    def gateway_ids(self) -> set[str]:
        return set(self._unread)

    def forget(self, gateway_id: str) -> None:
        self.drop(gateway_id)
        self._unread.pop(gateway_id, None)

    def acknowledge(self, batch: Batch, entry_id: bytes) -> None:
        """``entry_id``: what Redis has it under. What has been given up since is ignored here."""
        self._unread[batch.gateway_id].add(entry_id, len(batch.data))
        outbox = self._by_gateway.get(batch.gateway_id)
        if outbox is None or outbox.batches[0] is not batch:
            return
        outbox.batches.popleft()
        outbox.num_bytes -= len(batch.data)
        if not outbox.batches:
            del self._by_gateway[batch.gateway_id]

    def block(self, gateway_id: str) -> None:
        """Hold back the batches of a gateway whose stream does not exist, until ``unblock``."""
        if outbox := self._by_gateway.get(gateway_id):
            outbox.is_blocked = True

    def unblock(self) -> None:
        for outbox in self._by_gateway.values():
            outbox.is_blocked = False

    def drop(self, gateway_id: str) -> list[Batch]:
        outbox = self._by_gateway.pop(gateway_id, None)
        return [] if outbox is None else list(outbox.batches)

    def drop_older_than(self, added_s: float) -> list[Batch]:
        return [batch for name in self.behind(added_s) for batch in self.drop(name)]

    def drop_excess(self) -> list[Batch]:
        dropped: list[Batch] = []
        while self.num_bytes > self._max_bytes:
            largest = max(self._by_gateway, key=lambda name: self._by_gateway[name].num_bytes)
            dropped += self.drop(largest)
        return dropped

    def behind(self, added_s: float) -> list[str]:
        return [
            gateway_id
            for gateway_id, outbox in self._by_gateway.items()
            if outbox.batches[0].added_s < added_s
        ]

    def _sendable(self) -> Iterator[Batch]:
        for gateway_id, outbox in self._by_gateway.items():
            if not outbox.is_blocked:
                yield from self._with_room(outbox, self._unread[gateway_id])

    def _with_room(self, outbox: _Outbox, unread: UnreadEntries) -> Iterator[Batch]:
        num_bytes = 0
        for batch in outbox.batches:
            num_bytes += len(batch.data)
            if not unread.has_room_for(num_bytes):
                return
            yield batch
