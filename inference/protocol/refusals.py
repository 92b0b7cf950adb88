"""Counts of refused requests by account and reason, shared by all gateways.

    helexa:refusals:<hour>    hash "<code> <account>" ─▶ how many, kept for a day
                              "<code> <key> <account>" for codes that are counted for each key
                              "<code>/<cause> <account>" where one code has several causes

Hours count from the epoch. While Redis stalls, a count may be lost or added twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from inference.protocol.delivery import BROKE_WORKER

HOUR_S = 3600
KEPT_HOURS = 25
OVERLOADED = "overloaded"
UNKNOWN = "-"
COUNTED_BY_KEY = frozenset({BROKE_WORKER})


class Cause(StrEnum):
    """A spent cap of a window and a limit of a minute have one code."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    MAX_CONCURRENT = "max_concurrent"
    ACCOUNT_BUDGET = "account_budget"
    KEY_BUDGET = "key_budget"
    RESERVED = "reserved"
    STORED = "stored"
    QUEUE_SHARE = "queue_share"
    PROMPT_TOO_DEAR = "prompt_too_dear"


CAUSES_BEHIND = {
    "rate_limit_exceeded": Cause.QUEUE_SHARE,
    "insufficient_quota": Cause.PROMPT_TOO_DEAR,
}


@dataclass(frozen=True, slots=True)
class Refused:
    """``account`` is empty where the caller is unknown. ``key`` is the public prefix."""

    code: str
    account: str
    key: str = ""
    cause: str = ""


def refusals_key(unix_s: float) -> str:
    return f"helexa:refusals:{int(unix_s) // HOUR_S}"


def newest_keys(unix_s: float, hours: int) -> list[str]:
    return [refusals_key(unix_s - ago * HOUR_S) for ago in range(min(hours, KEPT_HOURS))]


def encode_field(refused: Refused) -> str:
    account = refused.account or UNKNOWN
    if refused.code in COUNTED_BY_KEY:
        return f"{refused.code} {refused.key or UNKNOWN} {account}"
    return f"{refused.code}{f'/{refused.cause}' if refused.cause else ''} {account}"


def sum_of(hashes: Iterable[Mapping[bytes, bytes]]) -> dict[Refused, int]:
    found: dict[Refused, int] = {}
    for one in hashes:
        for field, number in one.items():
            refused = _decode_field(field.decode(errors="replace"))
            if refused is not None and number.isdigit():
                found[refused] = found.get(refused, 0) + int(number)
    return found


def _decode_field(field: str) -> Refused | None:
    word, _, account = field.partition(" ")
    code, _, cause = word.partition("/")
    key = UNKNOWN
    if code in COUNTED_BY_KEY:
        key, _, account = account.partition(" ")
    if not account:
        return None
    return Refused(
        code, "" if account == UNKNOWN else account, "" if key == UNKNOWN else key, cause
    )


def by_code(counts: Mapping[Refused, int]) -> dict[Refused, int]:
    found: dict[Refused, int] = {}
    for one, number in counts.items():
        plain = replace(one, cause="")
        found[plain] = found.get(plain, 0) + number
    return found
