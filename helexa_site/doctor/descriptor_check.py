"""File descriptors: how many a process may have, and whether gateways ran out of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import redis

from fleet.live.reading import redis_client
from fleet.live.refusals import read_refusals
from helexa_site.doctor.findings import Finding, ok, warning
from inference.descriptors import DescriptorMarks, raise_descriptor_limit
from inference.protocol.refusals import OVERLOADED, Refused

CHECK = "files"
FEW = 4096
HOURS = 2
HOW_TO_RAISE = "raise the limit: LimitNOFILE= of the unit, nofile in limits.conf, or ulimit -Hn"


def descriptor_findings() -> Iterator[Finding]:
    try:
        refused = read_refusals(redis_client(), hours=HOURS)
    except (redis.RedisError, OSError):
        refused = {}  # Redis has a line of its own
    yield from findings_of(raise_descriptor_limit(), refused)


def findings_of(limit: int, refused: Mapping[Refused, int]) -> Iterator[Finding]:
    """Pure. ``limit`` is of a process that is started from here."""
    num_clients = DescriptorMarks.of_limit(limit).refuse_from
    text = f"a process may have {limit:,} file descriptors, a gateway's clients {num_clients:,}"
    yield warning(CHECK, text, HOW_TO_RAISE) if limit < FEW else ok(CHECK, text)
    num_refused = sum(number for one, number in refused.items() if one.code == OVERLOADED)
    if num_refused:
        yield warning(
            CHECK,
            f"gateways ran out of file descriptors: {num_refused:,} connections were refused since "
            "the last full hour but one",
            f"{HOW_TO_RAISE}, or run another gateway",
        )
