"""Usage that neurons report for requests whose gateway died. The control plane settles them.

When a gateway dies, each of its neurons adds one ``UsageReport`` to its own stream
``helexa:neuron:<name>:usage`` for each request of that gateway that was open, or that had ended
within the last two minutes: the gateway may or may not have settled those. So a report may be of a
request that is settled already, and may come twice. The control settles each request once.

The receipt, which the gateway sealed (``metering.ledger.receipts``), holds the account, the model
and the most that it may cost. The neuron adds the usage, the outcome and the time.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.protocol.events import Usage

RequestEnd = Literal["finished", "failed", "cancelled"]


class UsageReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the stream, msgpack in the field ``b"r"``."""

    receipt: bytes
    """The request's own, as its gateway sealed it for this neuron."""
    usage: Usage | None
    """``None``: nothing was computed, so nothing is owed."""
    outcome: RequestEnd
    """An open request is cancelled when its gateway dies."""
    started_unix_s: float
    """When the neuron popped it from its inbox."""
    ended_unix_s: float
    code: str | None = None
    """The failure's code, where it failed."""
    time_to_first_token_s: float | None = None
    """The time from ``started_unix_s`` to the first token; ``None``: there was no token."""


USAGE_REPORT_FIELD = b"r"
encode_usage_report = msgspec.msgpack.Encoder().encode
decode_usage_report = msgspec.msgpack.Decoder(UsageReport).decode
