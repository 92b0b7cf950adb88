"""How long an audio file may be, by its bytes. Pure.

The length of a WAV file of samples follows from its rate, channels and width. Of every other file
only bounds are known: no codec in use needs fewer bytes a second than ``LEAST_BYTES_A_SECOND``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEAD_BYTES = 64 * 1024
"""The number of a file's first bytes that are looked at."""
LEAST_BYTES_A_SECOND = 500
"""4 kbit/s: Opus begins at 6, AMR at 4.75."""
USUAL_BYTES_A_SECOND = 8_000
"""64 kbit/s, at which much speech is kept: the estimate where no upstream reports a length."""
SAMPLES = frozenset({1, 3, 0xFFFE})
"""WAV formats that are not compressed: integers, floats, and either by a longer description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLength:
    """The length of an audio file in whole seconds, rounded up."""

    most_s: int
    likely_s: int
    is_exact: bool


def audio_length(head: bytes, num_bytes: int) -> AudioLength:
    """``head``: the file's first bytes, up to ``HEAD_BYTES``, of ``num_bytes``."""
    samples = _samples(head)
    if samples is not None:
        rate, begin = samples
        exact_s = max(1, -(-(num_bytes - begin) // rate))
        return AudioLength(most_s=exact_s, likely_s=exact_s, is_exact=True)
    return AudioLength(
        most_s=max(1, -(-num_bytes // LEAST_BYTES_A_SECOND)),
        likely_s=max(1, -(-num_bytes // USUAL_BYTES_A_SECOND)),
        is_exact=False,
    )


def _samples(head: bytes) -> tuple[int, int] | None:
    """Bytes a second, and at which byte the samples begin. ``None``: it is no WAV file of samples.
    The length in its head does not count: some recorders write it last."""
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    at, rate_bytes = 12, 0
    while at + 8 <= len(head):
        kind, size = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        if kind == b"data":
            return (rate_bytes, at + 8) if rate_bytes else None
        if kind == b"fmt " and at + 24 <= len(head) and not rate_bytes:
            form, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", head, at + 8)
            rate_bytes = rate * channels * -(-bits // 8)
            if form not in SAMPLES or not rate_bytes:
                return None
        at += 8 + size + size % 2
    return (rate_bytes, 0) if rate_bytes else None
