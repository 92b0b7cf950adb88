"""The ids of requests.

They are UUIDs of version 7 (RFC 9562, section 5.7). Ids of the same second lie side by side in an
index; random ids change a page each, which costs a database more than the rest of the row.

    019ac3f2 4b1d 7 c0e 9 2f3a5b6c7d8e9fa
    unix ms       │     └ variant 10, and 2 random bits
                  └ version
"""

from __future__ import annotations

import os
import re
import time

REQUEST_ID = re.compile("[0-9a-f]{32}")
NUM_RANDOM_BYTES = 10
VERSION = 7 << 76
VARIANT = 2 << 62
RANDOM_BITS = (0xFFF << 64) | ((1 << 62) - 1)


def new_request_id(unix_s: float | None = None) -> str:
    unix_ms = time.time_ns() // 1_000_000 if unix_s is None else int(unix_s * 1000)
    drawn = int.from_bytes(os.urandom(NUM_RANDOM_BYTES)) & RANDOM_BITS
    return f"{(unix_ms << 80) | VERSION | drawn | VARIANT:032x}"
