"""Bounds how many strings, objects and lists a JSON body holds before it is decoded.

Decoding holds the interpreter's lock from its beginning to its end, in whichever thread it runs,
and takes most of its time for these: 30 MB of short messages stop a gateway's other streams for a
sixth of a second, 3 MB of empty lists for longer. Numbers are not bounded: prompts of token ids
have millions.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.wire.errors import TooManyValuesError

MAX_VALUES = 100_000
"""Of strings, keys among them, and of objects and lists: some 25,000 messages. So many are decoded
within a hundredth of a second."""
PIECE_BYTES = 64 * 1024
"""So much is counted between two moments in which another thread may run."""


def check_num_values(body: bytes) -> None:
    """Raises ``TooManyValuesError``."""
    if len(body) <= MAX_VALUES:
        return
    num_quotes = num_containers = 0
    for piece in _pieces(body):
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[num_quotes % 2 :: 2])
        num_quotes += len(parts) - 1
        num_containers += outside.count(b"[") + outside.count(b"{")
        if num_quotes > 2 * MAX_VALUES or num_containers > MAX_VALUES:
            raise TooManyValuesError(MAX_VALUES)


def _pieces(body: bytes) -> Iterator[bytes]:
    """None ends in the middle of an escape: behind an odd number of backslashes."""
    start = 0
    while start < len(body):
        piece = body[start : start + PIECE_BYTES]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if num_backslashes % 2 and len(piece) > 1:
            piece = piece[:-1]
        start += len(piece)
        yield piece
