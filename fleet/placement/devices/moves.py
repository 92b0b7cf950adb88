"""Moves idle models to other devices when they are evicted for a load.

    free memory in pieces:  a [ old 10 | free 6 ]   b [ free 12 ]      new needs 14
    the load, and a move:   a [ new 14          ]   b [ old 10 | ]     nothing is evicted

A load that evicts is decided first. An evicted model is loaded elsewhere if memory is free there
without another eviction, however long ago it was used. Busy and pinned models never move, nor those
that can sleep in place, or that another neuron has as well. Evictions prefer models that can move
(``FleetCapacity``). Pure.
"""

from __future__ import annotations

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView
from fleet.placement.decisions import Catalogue, Load
from fleet.placement.devices.capacity import HELD, idle_age_s, may_sleep
from fleet.placement.devices.room import find_room
from fleet.placement.expected import with_load
from fleet.placement.place import load_decision
from inference.protocol.heartbeat import ReplicaStatus


def moves_for(load: Load, snapshot: FleetSnapshot, catalogue: Catalogue) -> tuple[Load, ...]:
    """The loads elsewhere of models evicted for ``load``; each takes the earlier ones into account.
    None evicts. One on the same neuron, on another device of it, begins once the model is
    unloaded."""
    entry = catalogue.get(load.model)
    if entry is None or snapshot.neuron(load.neuron) is None:
        return ()
    expected = with_load(snapshot, load, entry)
    moves: list[Load] = []
    for neuron_name, model in load.evictions:
        moved, neuron = catalogue.get(model), snapshot.neuron(neuron_name)
        if moved is None or neuron is None or not _is_worth_moving(moved, neuron, expected):
            continue
        held = {replica.neuron for replica in expected.replicas_of(model)}
        room = find_room(moved, expected, catalogue, excluded=held, may_evict=False)
        if room.candidate is None:
            continue
        move = load_decision(moved, room.candidate)
        if not (move.neuron == neuron_name and {*move.devices} & _devices_on(load, neuron_name)):
            moves.append(move)
            expected = with_load(expected, move, moved)
    return tuple(moves)


def _is_worth_moving(moved: CatalogueEntry, neuron: NeuronView, expected: FleetSnapshot) -> bool:
    """``neuron``: before the eviction."""
    replica = neuron.replica_of(moved.name)
    if replica is None or replica.status is not ReplicaStatus.READY:
        return False
    if idle_age_s(replica) is None or moved.effective_min_replicas > 0:
        return False
    is_elsewhere = any(other.status in HELD for other in expected.replicas_of(moved.name))
    return not is_elsewhere and not may_sleep(replica, neuron)


def _devices_on(load: Load, neuron: str) -> set[str]:
    """The load's devices there: a model of unknown size would move back to them."""
    if neuron == load.neuron:
        return {*load.devices}
    return {stage.device for stage in load.stages if stage.neuron == neuron}
