"""Delivery of requests to a neuron: large frames in parts, the requests that it holds, and those
that may be retried after its death. Pure.

    frame ─▶ inbox_entries ─▶ {f: frame}                     up to PART_BYTES
                          └─▶ {f: piece, p: FramePart} …     ─▶ FrameAssembler ─▶ frame
    image ─▶ image_fields  ─▶ {digest:0: piece, digest:1: …}

Parts keep Redis from buffering a large value for a connection, so buffers can have small limits.

A neuron marks a request before it renders, tokenizes or compiles anything of it (``load:<model>``
while it reads a tokenizer), and removes the mark once the engine has it or it has ended. The marks
of a dead instance are the requests that may have killed it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from inference.protocol.events import Failure
from inference.protocol.keys import INBOX_FRAME_FIELD, INBOX_PART_FIELD

PART_BYTES = 128 * 1024
MAX_PARTS = 2**20
PARTS_A_READ = 32
FRAME_KEPT_S = 120.0

Entry = dict[bytes, bytes]


class FramePart(msgspec.Struct, frozen=True, array_like=True):
    """``frame_id`` is new for each frame."""

    frame_id: bytes
    index: int
    count: int


_encode_part = msgspec.msgpack.Encoder().encode
_decode_part = msgspec.msgpack.Decoder(FramePart).decode


def inbox_entries(frame: bytes) -> list[Entry]:
    if len(frame) <= PART_BYTES:
        return [{INBOX_FRAME_FIELD: frame}]
    pieces = list(_pieces(frame))
    frame_id = uuid.uuid4().bytes
    return [
        {
            INBOX_FRAME_FIELD: piece,
            INBOX_PART_FIELD: _encode_part(FramePart(frame_id, index, len(pieces))),
        }
        for index, piece in enumerate(pieces)
    ]


def image_fields(digest: str, data: bytes) -> dict[str, bytes]:
    names = image_field_names(digest, len(data))
    return dict(zip(names, _pieces(data), strict=True))


def image_field_names(digest: str, num_bytes: int) -> list[str]:
    return [f"{digest}:{index}" for index in range(-(-num_bytes // PART_BYTES))]


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES))


class FrameAssembler:
    """Entries may be duplicated and interleaved."""

    def __init__(self, *, kept_s: float = FRAME_KEPT_S) -> None:
        self._kept_s = kept_s
        self._begun: dict[tuple[bytes, int], tuple[float, dict[int, bytes]]] = {}
        """Maps (frame id, number of pieces) to the first piece's time and the pieces by index."""

    def add(self, entry: Mapping[bytes, bytes], now_s: float) -> bytes | None:
        """``None`` where more must come. Raises ``ValueError`` (as msgspec's errors are)."""
        data = entry.get(INBOX_FRAME_FIELD, b"")
        if INBOX_PART_FIELD not in entry:
            return data
        part = _decode_part(entry[INBOX_PART_FIELD])
        if not 0 <= part.index < part.count <= MAX_PARTS:
            raise ValueError(f"piece {part.index} of {part.count}")
        self._forget(now_s)
        key = part.frame_id, part.count
        _, pieces = self._begun.setdefault(key, (now_s, {}))
        pieces[part.index] = data
        if len(pieces) < part.count:
            return None
        del self._begun[key]
        return b"".join(pieces[index] for index in range(part.count))

    def _forget(self, now_s: float) -> None:
        while self._begun:
            oldest = next(iter(self._begun))
            if now_s - self._begun[oldest][0] < self._kept_s:
                return
            del self._begun[oldest]


NO_GATEWAY = ""
"""A gateway without a field of its own reads this one."""
MAX_HELD = 10_000
MAX_HELD_BYTES = 512 * 1024


class HeldRequests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Made after the neuron has drained its inbox, so it includes every earlier frame."""

    epoch: str
    beat: int
    """A reader skips a beat that it has read in this epoch."""
    request_ids: Annotated[list[str], msgspec.Meta(max_length=MAX_HELD)] = []
    is_behind: bool = False
    """Events for this gateway are unsent: a missing request may have ended."""


def held_requests(
    epoch: str, beat: int, ids_by_gateway: Mapping[str, list[str]], behind: Iterable[str]
) -> dict[str, HeldRequests]:
    nothing = HeldRequests(epoch=epoch, beat=beat)
    held = {NO_GATEWAY: nothing}
    for gateway_id, request_ids in ids_by_gateway.items():
        held[gateway_id] = msgspec.structs.replace(nothing, request_ids=request_ids)
    for gateway_id in behind:
        known = held.get(gateway_id, nothing)
        held[gateway_id] = msgspec.structs.replace(known, is_behind=True)
    return held


encode_held_requests = msgspec.msgpack.Encoder().encode
decode_held_requests = msgspec.msgpack.Decoder(HeldRequests).decode


MARKS_EXPIRY_S = 300
"""The last mark renews it. A death is detected within seconds."""
BROKE_WORKER = "request_broke_worker"
MAX_DEATHS = 1
"""The most dead workers of a request that is still retried, each under several requests."""


@dataclass(frozen=True, slots=True)
class Blame:
    num_worker_deaths: int
    may_deliver_again: bool


def blame(marks: Mapping[str, str], request_ids: Collection[str], num_worker_deaths: int) -> Blame:
    """``marks`` are the dead neuron's. A request without a mark was only waiting there."""
    epochs = [marks[request_id] for request_id in request_ids if request_id in marks]
    if not epochs:
        return Blame(num_worker_deaths, may_deliver_again=True)
    all_epochs = list(marks.values())
    was_alone = any(all_epochs.count(epoch) == 1 for epoch in epochs)
    num_deaths = num_worker_deaths + len(epochs)
    return Blame(num_deaths, may_deliver_again=num_deaths <= MAX_DEATHS and not was_alone)


def load_mark(model: str) -> str:
    return f"load:{model}"


def broke_worker(worker: str) -> Failure:
    message = f"{worker} ended while it worked on this request, which is not run again"
    return Failure(code=BROKE_WORKER, message=message)


def decode_marks(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        request_id.decode(errors="replace"): epoch.decode(errors="replace")
        for request_id, epoch in found.items()
    }
