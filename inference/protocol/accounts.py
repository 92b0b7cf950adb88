"""A neuron's account of one request whose gateway died, for whoever settles its reservation.

When a gateway dies its neurons add one ``RequestAccount`` to the stream ``helexa:accounts`` for
each request of that gateway that was open, or that had ended within the last two minutes: the
gateway may or may not have settled those. So an account may tell of a request that is settled
already, and may come twice. Whoever reads settles each request id once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.protocol.events import Usage

RequestEnd = Literal["finished", "failed", "cancelled"]


class RequestAccount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the stream, msgpack in the field ``b"a"``."""

    request_id: str
    gateway_id: str
    """The dead one, which made the reservation."""
    account: str
    key: str
    """The public prefix of the API key; empty where there was none."""
    model: str
    """Its catalogue name."""
    neuron: str
    endpoint: str
    """The path that the client called."""
    usage: Usage | None
    """``None``: nothing was computed, so nothing is owed."""
    outcome: RequestEnd
    """An open request is cancelled when its gateway dies."""
    started_unix_s: float
    """When the neuron took it from its inbox."""
    ended_unix_s: float
    receipt: str = ""
    """The request's own, as its gateway made it for this neuron."""
    code: str | None = None
    """The failure's code, where it failed."""
    time_to_first_token_s: float | None = None
    """From ``started_unix_s``; ``None``: there was no token."""


ACCOUNT_FIELD = b"a"
encode_request_account = msgspec.msgpack.Encoder().encode
decode_request_account = msgspec.msgpack.Decoder(RequestAccount).decode
