"""Which models requests wait for at one gateway. The control plane schedules time slices by it.

A gateway writes its report into the hash ``helexa:waiting`` each second while something waits
there. One whose ``beat`` stands still is of a gateway that is gone.
"""

from __future__ import annotations

import msgspec


class WaitingModel(msgspec.Struct, frozen=True, kw_only=True):
    num_requests: int
    oldest_s: float
    """Seconds for which at least one request has waited for it without a break."""


class WaitingReport(msgspec.Struct, frozen=True, kw_only=True):
    beat: int
    models: dict[str, WaitingModel] = {}


encode_waiting_report = msgspec.json.Encoder().encode
decode_waiting_report = msgspec.json.Decoder(WaitingReport).decode
