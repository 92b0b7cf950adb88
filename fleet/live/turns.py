"""Time slices on devices that more models are requested for than fit.

    control decides ─▶ helexa:turns ─▶ every gateway's snapshot ─▶ placement keeps the room

A turn (time slice) begins when replicas that are in use begin to drain, and ends when the waiting
model is loaded there. Until then the room is promised to it.
"""

from __future__ import annotations

import msgspec


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    neuron: str
    devices: tuple[str, ...]
    device_bytes: int
    """Promised on each of them."""
    evicted: tuple[str, ...] = msgspec.field(default=(), name="victims")
    """The models that are evicted for it."""
    age_s: float = 0.0
    """Since it was given."""


encode_turns = msgspec.json.Encoder().encode
decode_turns = msgspec.json.Decoder(tuple[Turn, ...]).decode
