from __future__ import annotations

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot


def is_outdated(loaded_digest: str, entry: CatalogueEntry) -> bool:
    """``False`` for a neuron that does not report the digest of its spec."""
    return loaded_digest not in ("", entry.spec_digest())


def outdated_neurons(entry: CatalogueEntry, snapshot: FleetSnapshot) -> list[str]:
    return [
        replica.neuron
        for replica in snapshot.replicas_of(entry.name)
        if is_outdated(replica.spec_digest, entry)
    ]
