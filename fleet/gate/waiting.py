"""Which models must be ready, and whether they are, by the fleet's overview. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNDER_WAY = ("pending", "running")


@dataclass(frozen=True, slots=True, order=True)
class Loaded:
    neuron: str
    model: str

    def __str__(self) -> str:
        return f"{self.model} on {self.neuron}"


def ready_now(overview: Mapping[str, Any], neuron: str | None = None) -> list[Loaded]:
    """The replicas that are ready, on that neuron or on all."""
    return sorted(
        Loaded(line["name"], replica["model"])
        for line in overview["neurons"]
        for replica in line["replicas"]
        if replica["status"] == "ready" and neuron in (None, line["name"])
    )


def missing(
    overview: Mapping[str, Any], expected: Sequence[Loaded], neuron: str | None = None
) -> list[str]:
    """Why the gate is still closed, in words; empty: it may ask."""
    ready = set(ready_now(overview))
    reasons = [f"{one} is not ready" for one in expected if one not in ready]
    return [*reasons, *_of_neurons(overview, neuron), *_under_way(overview, neuron)]


def failures(overview: Mapping[str, Any], neuron: str | None = None) -> list[str]:
    """What no waiting mends."""
    return [
        f"{replica['model']} failed on {line['name']}: {replica['failure']}"
        for line in overview["neurons"]
        if neuron in (None, line["name"])
        for replica in line["replicas"]
        if replica["status"] == "failed"
    ]


def _of_neurons(overview: Mapping[str, Any], neuron: str | None) -> Iterator[str]:
    if not overview["is_live"]:
        yield "Redis does not answer the gateway"
    if neuron is None:
        return
    line = next((line for line in overview["neurons"] if line["name"] == neuron), None)
    if line is None:
        yield f"{neuron} is not known"
    elif line["status"] not in ("online", "draining"):
        yield f"{neuron} is {line['status']}"


def _under_way(overview: Mapping[str, Any], neuron: str | None) -> Iterator[str]:
    """Models that are being loaded. Pinned ones that a neuron loads by itself are in no earlier
    list."""
    for job in overview["jobs"]:
        if job["status"] in UNDER_WAY and neuron in (None, job["neuron"]):
            yield f"{job['kind']} of {job['model']} on {job['neuron']} is {job['status']}"
