"""Splits frames that are too large for one entry of an inbox, and images.

    frame ─▶ inbox_entries ─▶ {f: frame}                     up to PART_BYTES
                          └─▶ {f: piece, p: FramePart} …     ─▶ FrameAssembler ─▶ frame
    image ─▶ image_fields  ─▶ {digest:0: piece, digest:1: …}

So neither side of Redis ever buffers a large value for a connection, however large a request's body
is, and connections' buffers can have small limits. Pure: times are arguments.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from inference.protocol.keys import INBOX_FRAME_FIELD, INBOX_PART_FIELD

PART_BYTES = 128 * 1024
MAX_PARTS = 2**20
PARTS_A_READ = 32
"""The most that a neuron reads at once: 4 MiB."""
KEPT_S = 120.0
"""An incomplete frame is dropped after this time, and a complete one is remembered for it."""

Entry = dict[bytes, bytes]


class FramePart(msgspec.Struct, frozen=True, array_like=True):
    """The number of a piece, and its frame. ``frame_id`` is new for each frame."""

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


@dataclass(slots=True)
class _Incomplete:
    began_s: float
    num_parts: int
    pieces: dict[int, bytes] = field(default_factory=dict)
    is_complete: bool = False


class FrameAssembler:
    """Assembles frames, whose entries may be duplicated and interleaved."""

    def __init__(self, *, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._by_id: dict[bytes, _Incomplete] = {}

    def add(self, entry: Mapping[bytes, bytes], now_s: float) -> bytes | None:
        """The frame that this entry is or completes; ``None`` where more must come, and for a
        duplicate. Raises ``ValueError`` (as msgspec's errors are) for an invalid part."""
        data = entry.get(INBOX_FRAME_FIELD, b"")
        if INBOX_PART_FIELD not in entry:
            return data
        part = _decode_part(entry[INBOX_PART_FIELD])
        if not 0 <= part.index < part.count <= MAX_PARTS:
            raise ValueError(f"piece {part.index} of {part.count}")
        self._forget(now_s)
        frame = self._by_id.setdefault(part.frame_id, _Incomplete(now_s, part.count))
        if frame.is_complete:
            return None
        if part.count != frame.num_parts:
            raise ValueError(f"a piece of {part.count} in a frame of {frame.num_parts}")
        frame.pieces[part.index] = data
        if len(frame.pieces) < frame.num_parts:
            return None
        whole = b"".join(frame.pieces[index] for index in range(frame.num_parts))
        frame.pieces.clear()
        frame.is_complete = True
        return whole

    def _forget(self, now_s: float) -> None:
        while self._by_id:
            oldest = next(iter(self._by_id))
            if now_s - self._by_id[oldest].began_s < self._kept_s:
                return
            del self._by_id[oldest]
