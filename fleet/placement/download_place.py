"""Chooses the neuron of a download that names none. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fleet.live.snapshot import FleetSnapshot
from inference.protocol.downloads import CachedModel, CacheReport


def download_neuron(
    source: str,
    snapshot: FleetSnapshot,
    reports: Mapping[str, CacheReport],
    wanted: Collection[str] = (),
) -> str | None:
    """Returns a neuron that already has files of ``source``, else the one whose disk has most room.
    ``wanted``: the neurons that the model is for; empty: any. ``None``: no such neuron takes
    downloads now."""

    def worth(name: str) -> tuple[bool, int]:
        report = reports.get(name)
        if report is None:
            return False, -1
        return any(is_of_source(one, source) for one in report.cached), report.disk_free_bytes

    names = [neuron.name for neuron in snapshot.neurons if neuron.may_load]
    able = [name for name in names if not wanted or name in wanted]
    return max(able, key=worth, default=None)


def is_of_source(cached: CachedModel, source: str) -> bool:
    """Whether it was downloaded from ``source``. A wheel's version is part of its name there."""
    name = source.partition("==")[0]
    return cached.source == name or (
        name.startswith("pypi:") and cached.source.startswith(f"{name.lower()}-")
    )
