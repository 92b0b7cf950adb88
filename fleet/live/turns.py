"""Whose turn it is on devices that more models are asked for than fit.

    control decides ─▶ helexa:turns ─▶ every gateway's snapshot ─▶ placement keeps the room

A turn begins when replicas that are in use are told to leave, and ends when the model that waited
is loaded there. Until then the room is promised to it.
"""

from __future__ import annotations

import msgspec


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    neuron: str
    devices: tuple[str, ...]
    device_bytes: int
    """Promised on each of them."""
    victims: tuple[str, ...] = ()
    """The models that leave for it."""
    age_s: float = 0.0
    """Since it was given."""


encode_turns = msgspec.json.Encoder().encode
decode_turns = msgspec.json.Decoder(tuple[Turn, ...]).decode
