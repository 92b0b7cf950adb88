"""Whether a replica would find room on another neuron, in memory that is free there now. Pure.

Asked for each of a thousand replicas of a snapshot, so it compares what the replica takes with the
fullest free device; ``moves`` decides exactly.
"""

from __future__ import annotations

from collections.abc import Collection

from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import FleetSnapshot, ReplicaView


class FreeElsewhere:
    """The most that one device of each neuron has free."""

    def __init__(self, snapshot: FleetSnapshot) -> None:
        self._free: dict[DeviceKind, dict[str, int]] = {"cuda": {}, "cpu": {}}
        for neuron in snapshot.neurons:
            if not neuron.may_load:
                continue
            for info in neuron.devices:
                most = self._free[info.kind]
                most[neuron.name] = max(most.get(neuron.name, 0), info.free_memory_bytes)
        self._roomiest = {
            kind: sorted(most, key=most.__getitem__, reverse=True)[:2]
            for kind, most in self._free.items()
        }
        """Two: a replica does not move to its own neuron."""

    def has_room_for(self, replica: ReplicaView, pinned_on: Collection[str] = ()) -> bool:
        """``pinned_on``: the neurons that it may be on; empty: any. One that spans devices has
        none."""
        if len(replica.devices) > 1 or not replica.memory_bytes:
            return False
        kind: DeviceKind = "cpu" if "cpu" in replica.devices else "cuda"
        most = self._free[kind]
        return any(
            most.get(name, 0) >= replica.memory_bytes
            for name in (pinned_on or self._roomiest[kind])
            if name != replica.neuron
        )
