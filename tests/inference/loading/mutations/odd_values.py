"""Numbers, texts and JSON values that files of models do not expect."""

from __future__ import annotations

import math
import random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 48, 63, 64, 65, 96, 128, 255, 256, 257, 1000, 1025),
    *(-1, -2, -64, 2**15, 2**16, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40),
    *(2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)),
)
FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 1e-30, 0.5, 1.0, -1.0, 1e9, 1e38, 1e300)
TEXTS = (
    "",
    "llama",
    "qwen2",
    "gpt2",
    "yarn",
    "linear",
    "longrope",
    "full_attention",
    "\0",
    "x" * 5000,
)
MOST_CHANGES = 3


def damaged(content: bytes, header_bytes: int, rng: random.Random) -> bytes:
    """Bits and numbers anywhere in a header, or a file that ends early or late."""
    changed = bytearray(content)
    match rng.randrange(4):
        case 0:
            for _ in range(rng.randint(1, 8)):
                changed[rng.randrange(header_bytes)] ^= 1 << rng.randrange(8)
        case 1:
            width = rng.choice((1, 2, 4, 8))
            at = rng.randrange(max(1, header_bytes - width))
            number = rng.choice(NUMBERS) & (256**width - 1)
            changed[at : at + width] = number.to_bytes(width, "little")
        case 2:
            del changed[rng.randrange(len(changed)) :]
        case _:
            changed += bytes(rng.randrange(1, 100))
    return bytes(changed)


def json_value(value: Any, rng: random.Random) -> Any:
    near: tuple[Any, ...] = ()
    if isinstance(value, int) and not isinstance(value, bool):
        near = (value + 1, value - 1, value * 2, value // 2, -value, float(value), str(value))
    elif isinstance(value, float):
        near = (value * 2, -value, int(value) if math.isfinite(value) else 0, *FLOATS)
    elif isinstance(value, list) and value:
        near = (value[:-1], value + value[:1], [value], value[0])
    if near and rng.random() < 0.5:
        return rng.choice(near)
    others = (None, True, False, [], {}, [[[]]], [None], {"a": 1}, "128", *TEXTS)
    return rng.choice((*NUMBERS, *FLOATS, *others))
