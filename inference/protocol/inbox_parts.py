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

import msgspec

from inference.protocol.keys import INBOX_FRAME_FIELD, INBOX_PART_FIELD

PART_BYTES = 128 * 1024
MAX_PARTS = 2**20
PARTS_A_READ = 32
"""The most that a neuron reads at once: 4 MiB."""
KEPT_S = 120.0
"""An incomplete frame is dropped after this time."""

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


class FrameAssembler:
    """Assembles frames, whose entries may be duplicated and interleaved."""

    def __init__(self, *, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._begun: dict[tuple[bytes, int], tuple[float, dict[int, bytes]]] = {}
        """The time of each frame's first piece, and its pieces. A frame's key has their number."""

    def add(self, entry: Mapping[bytes, bytes], now_s: float) -> bytes | None:
        """The frame that this entry is or completes; ``None`` where more must come. Raises
        ``ValueError`` (as msgspec's errors are) for an invalid part."""
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
