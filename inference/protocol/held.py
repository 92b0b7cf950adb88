"""Which requests a neuron holds; it publishes the list to each gateway once a second.

A hash ``helexa:neuron:<name>:held`` that expires with the heartbeat: a field for each gateway that
has requests there, and ``NO_GATEWAY`` for all the others, who have none. A gateway reads two
fields, however many requests other gateways have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

NO_GATEWAY = ""
MAX_HELD = 10_000
MAX_HELD_BYTES = 512 * 1024
"""The most requests of one list, and the bytes that it may take. A longer one is not read."""


class HeldRequests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Made after the neuron has drained its inbox, so a frame that was there before is counted."""

    epoch: str
    beat: int
    """Counts the lists of one epoch: a reader skips a beat that it has already read."""
    request_ids: Annotated[list[str], msgspec.Meta(max_length=MAX_HELD)] = []
    is_behind: bool = False
    """Events for this gateway are waiting in the neuron: a request that is not listed may have
    ended, and the gateway has not received that yet."""


def held_requests(
    epoch: str, beat: int, ids_by_gateway: Mapping[str, list[str]], behind: Iterable[str]
) -> dict[str, HeldRequests]:
    """The fields of the hash. ``behind``: gateways that are owed events."""
    nothing = HeldRequests(epoch=epoch, beat=beat)
    held = {NO_GATEWAY: nothing}
    for gateway_id, request_ids in ids_by_gateway.items():
        held[gateway_id] = msgspec.structs.replace(nothing, request_ids=request_ids)
    for gateway_id in behind:
        known = held.get(gateway_id, nothing)
        held[gateway_id] = msgspec.structs.replace(known, is_behind=True)
    return held


encode_held_requests = msgspec.msgpack.Encoder().encode
decode_held_requests = msgspec.msgpack.Decoder(HeldRequests).decode
