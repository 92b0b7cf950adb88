"""How a request ended, in the four words that every page, metric and record uses. Pure.

answered    the client got what it asked for
cancelled   the client left first
refused     the request was at fault, or there was no room for it: no engine failed
failed      the server failed
"""

from __future__ import annotations

from enum import StrEnum

from metering.ledger.entries import FINISHED

FIRST_ERROR = 400
UNAVAILABLE = 503
SERVER_ERRORS = frozenset({500, 502, UNAVAILABLE, 504})
BUSY = frozenset({"queue_full", "queue_timeout"})
"""Codes of refusals for want of room, which a neuron sends too."""


class Outcome(StrEnum):
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    FAILED = "failed"


ERRORS = frozenset({Outcome.REFUSED, Outcome.FAILED})
"""The client got an error instead of its answer, or in the middle of it."""


def outcome_of(*, code: str, error_status: int, is_placed: bool) -> Outcome:
    """``code``: ``finished``, ``cancelled``, or the error's. ``error_status``: the HTTP status of
    the error, also where the answer's stream had begun; 0: there was none. ``is_placed``: a neuron
    had been found for it."""
    if code == FINISHED:
        return Outcome.ANSWERED
    if error_status < FIRST_ERROR:
        return Outcome.CANCELLED
    is_full = error_status == UNAVAILABLE and (not is_placed or code in BUSY)
    return Outcome.FAILED if error_status in SERVER_ERRORS and not is_full else Outcome.REFUSED
