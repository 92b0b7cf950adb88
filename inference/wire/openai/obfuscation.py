"""Pads chunks to one size, so that the lengths in an encrypted stream do not reveal tokens.

    data: {…,"obfuscation":"x3k…"}      padded to the next multiple of BLOCK_BYTES

OpenAI's ``include_obfuscation``. Pure: the padding follows from what it pads.
"""

from __future__ import annotations

import base64
import hashlib

from inference.protocol.events import Event
from inference.wire.dialect import Encoder

BLOCK_BYTES = 64
"""The size of a padded block, more than most tokens and their escapes take."""
FRAME_END = b"\n\n"
OBJECT_END = b"}"
FIELD = b',"obfuscation":"%b"}'


class Obfuscated:
    """A stream encoder whose chunks are padded. ``marks``: what a frame holds that is to be."""

    def __init__(self, encoder: Encoder, *, marks: bytes) -> None:
        self._encoder = encoder
        self._marks = marks

    def encode(self, event: Event) -> bytes:
        return padded(self._encoder.encode(event), marks=self._marks)


def padded(frames: bytes, *, marks: bytes) -> bytes:
    if not frames:
        return b""
    each = frames.split(FRAME_END)
    return FRAME_END.join([_padded(frame) if marks in frame else frame for frame in each])


def _padded(frame: bytes) -> bytes:
    body = frame.removesuffix(OBJECT_END)
    num_bytes = -(len(body) + len(FIELD) - len(b"%b") + len(FRAME_END)) % BLOCK_BYTES
    return body + FIELD % _noise(frame, num_bytes)


def _noise(frame: bytes, num_bytes: int) -> bytes:
    """Letters and digits that do not compress."""
    return base64.urlsafe_b64encode(hashlib.shake_128(frame).digest(num_bytes))[:num_bytes]
