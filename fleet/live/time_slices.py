"""Time slices on devices that more models are requested for than fit.

    control decides ─▶ helexa:turns ─▶ every gateway's snapshot ─▶ placement keeps the room

A time slice is promised when replicas that are in use begin to drain. The room stays promised until
the waiting model is loaded there.
"""

from __future__ import annotations

import msgspec


class TimeSlice(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    neuron: str
    devices: tuple[str, ...]
    device_bytes: int
    """Promised on each of them, where ``stage_bytes`` has no other size."""
    stage_bytes: tuple[int, ...] = ()
    """The bytes promised on each, in their order, where the model is divided over them."""
    evicted: tuple[str, ...] = msgspec.field(default=(), name="victims")
    """The models that are evicted for it."""
    age_s: float = 0.0
    """Seconds since the slice was given."""

    def promised_on(self, device: str) -> int:
        if not self.stage_bytes:
            return self.device_bytes
        return self.stage_bytes[self.devices.index(device)]


encode_time_slices = msgspec.json.Encoder().encode
decode_time_slices = msgspec.json.Decoder(tuple[TimeSlice, ...]).decode
