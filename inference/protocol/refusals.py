"""How many requests were refused, of whom and why: counted by all gateways together.

    helexa:refusals:<hour>    hash "<code> <account>" ─▶ how many, kept for a day

An hour is counted from the epoch. Nobody is charged by it: what was counted while Redis stalled may
be missing or there twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HOUR_S = 3600
KEPT_HOURS = 25
NOBODY = "-"
"""Stands for callers who could not be told."""


@dataclass(frozen=True, slots=True)
class Refused:
    """``account`` is empty where nobody knew who asked."""

    code: str
    account: str


def refusals_key(unix_s: float) -> str:
    return f"helexa:refusals:{int(unix_s) // HOUR_S}"


def newest_keys(unix_s: float, hours: int) -> list[str]:
    """The keys of so many hours, the present one first."""
    return [refusals_key(unix_s - ago * HOUR_S) for ago in range(min(hours, KEPT_HOURS))]


def encode_field(refused: Refused) -> str:
    return f"{refused.code} {refused.account or NOBODY}"


def sum_of(hashes: Iterable[Mapping[bytes, bytes]]) -> dict[Refused, int]:
    """What does not read like a count is left out."""
    found: dict[Refused, int] = {}
    for one in hashes:
        for field, number in one.items():
            code, _, account = field.decode(errors="replace").partition(" ")
            if not number.isdigit() or not account:
                continue
            refused = Refused(code, "" if account == NOBODY else account)
            found[refused] = found.get(refused, 0) + int(number)
    return found
