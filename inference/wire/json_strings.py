"""Bounds how many strings a JSON body holds, keys among them, before it is decoded.

Decoding holds the interpreter's lock from its beginning to its end, in whichever thread it runs,
and takes most of its time for objects and strings: 30 MB of short messages stop a gateway's other
streams for a sixth of a second.
"""

from __future__ import annotations

from inference.wire.errors import TooManyStringsError

MAX_STRINGS = 100_000
"""Some 25,000 messages. They are decoded within a few hundredths of a second."""
PIECE_BYTES = 1024 * 1024
"""So much is counted between two moments in which another thread may run."""


def check_num_strings(body: bytes) -> None:
    """Counts quotes but for those that are escaped, as in JSON that stands in a text. A string that
    ends in a backslash counts half. Raises ``TooManyStringsError``."""
    if len(body) <= 2 * MAX_STRINGS:
        return
    num_quotes = 0
    for start in range(0, len(body), PIECE_BYTES):
        end = start + PIECE_BYTES
        num_quotes += body.count(b'"', start, end) - body.count(b'\\"', start, end + 1)
        if num_quotes > 2 * MAX_STRINGS:
            raise TooManyStringsError(MAX_STRINGS)
