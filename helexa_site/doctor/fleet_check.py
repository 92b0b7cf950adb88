"""The fleet: its versions, its clocks, and the problems that each neuron reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet.errors import SnapshotUnavailableError
from fleet.live.reading import read_live_fleet, redis_client
from fleet.live.reports import Report
from helexa_site.doctor.findings import Finding, ok, warning
from helexa_site.program import program
from inference.version import VERSION

CHECK = "fleet"


def fleet_findings() -> Iterator[Finding]:
    try:
        reports = read_live_fleet(redis_client()).reports
    except SnapshotUnavailableError:
        return  # Redis has a line of its own
    yield from findings_of(reports)


def findings_of(reports: Sequence[Report]) -> Iterator[Finding]:
    """Pure."""
    if not reports:
        yield warning(
            CHECK,
            "no neuron reports",
            f"start one: {program()} serve, or {program()} neurons invite NAME for another host",
        )
    for report in reports:
        heartbeat = report.heartbeat
        if heartbeat is None:
            yield warning(
                CHECK,
                f"{report.name}: {report.problem}",
                f"bring {report.name} to helexa {VERSION}",
            )
            continue
        problems = list(heartbeat.host.problems)
        for problem in problems:
            text, _, mend = problem.partition(": ")
            yield warning(
                CHECK, f"{report.name}: {text}", mend or f"run {program()} doctor on {report.name}"
            )
        if heartbeat.version != VERSION:
            yield warning(
                CHECK,
                f"{report.name} runs helexa {heartbeat.version}, this is {VERSION}",
                "upgrade the gateway and control first, then one neuron at a time",
            )
        elif not problems:
            yield ok(CHECK, f"{report.name} runs helexa {VERSION}")
