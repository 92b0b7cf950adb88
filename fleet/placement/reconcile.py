"""Decides the control plane's actions of one tick. Pure.

    too few replicas ──▶ Load, with back-off after failures; a briefly absent neuron's count
    a long queue ──────▶ Load of one more, where there is room without an eviction
    too many, idle ────▶ Unload, or Sleep where the operator enabled it and the host has room
    a neuron drains ───▶ Load assigned and used models elsewhere, then Unload them there, at once
                         where the drain's time is over
    pinned_on is changed ▶ Load where it names, then Unload what stands elsewhere
    its drain is over ─▶ Load there the models from before the drain, as room allows
    models that wait ──▶ time slices, where models do not fit together and are both in use

Each action takes the earlier ones into account. A tick starts a few loads at most: the next one is
a second away.

    a model waits ─▶ the time slices of those in use there end ─▶ they are drained, and the room is
                     promised to the one that has waited longest ─▶ its load begins its time slice

It serves all requests waiting by then and lasts ``time_slice_s`` at least, so models do not thrash.
A model waits for at most one slice of each model that has waited longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement.capacity import HELD, REPLACEABLE, Catalogue, idle_age_s, stage_neurons
from fleet.placement.decisions import (
    Action,
    Jobs,
    Observed,
    PlacementCandidate,
    Plan,
    Sleep,
    Unload,
    with_load,
    with_status,
)
from fleet.placement.leaving import (
    DRAINS,
    staying,
    surplus_leaves,
    unknown_leaves,
    unload_of,
    why_it_leaves,
)
from fleet.placement.room import find_room
from inference.backoff import Backoff
from inference.protocol.heartbeat import ReplicaStatus, WaitingModel

MAX_LOADS_A_TICK = 8
BACKOFF = Backoff(first_s=10.0, max_s=600.0)
"""After consecutive failures of an assigned model."""
QUEUE_LONG_S = 10.0
LONG_QUEUE = 4
SERVES_SOON = {ReplicaStatus.LOADING, ReplicaStatus.READY, ReplicaStatus.RECOVERING}
NONE_WAITING = WaitingModel(num_requests=0, oldest_s=0.0)
MAX_PROMISE_S = 180.0
"""How long memory stays promised. Drains end within two minutes."""
MOVE_IDLE_S = 2.0
"""A replica that is not required leaves a draining neuron after this, and evicts nothing."""


def reconcile(
    catalogue: Catalogue,
    snapshot: FleetSnapshot,
    *,
    jobs: Jobs,
    observed: Observed,
    time_slices: Sequence[TimeSlice] = (),
) -> Plan:
    return _Tick(catalogue, snapshot, jobs, observed).plan(time_slices)


def is_queue_long(replicas: Sequence[ReplicaView]) -> bool:
    ready = [replica for replica in replicas if replica.status is ReplicaStatus.READY]
    return bool(ready) and all(replica.queue_depth >= LONG_QUEUE for replica in ready)


class _Tick:
    def __init__(
        self, catalogue: Catalogue, snapshot: FleetSnapshot, jobs: Jobs, observed: Observed
    ) -> None:
        self._catalogue = catalogue
        self._snapshot = snapshot
        self._jobs = jobs
        self._observed = observed
        self._actions: list[Action] = []
        self._num_loads = 0
        self._pending: defaultdict[str, set[str]] = defaultdict(set)
        """Neurons by model where a load has begun that the snapshot does not show."""
        for model, neuron in jobs.loading:
            view = snapshot.neuron(neuron)
            if view is not None and view.replica_of(model) is None:
                self._pending[model].add(neuron)

    def plan(self, time_slices: Sequence[TimeSlice]) -> Plan:
        missing = [
            entry
            for entry in self._catalogue.values()
            if entry.effective_min_replicas and self._num_missing(entry) > 0
        ]
        wanted = {entry.name: NONE_WAITING for entry in missing} | dict(self._observed.waiting)
        kept = self._kept(time_slices, wanted)
        self._snapshot = replace(self._snapshot, time_slices=kept)
        for entry in missing:
            for _ in range(self._num_missing(entry)):
                self._load(entry)
        restored = self._restore_drained()
        for model, replicas in list(self._snapshot.by_model.items()):
            self._reconcile_model(model, replicas)
        self._move_leaving()
        self._give_time_slices(wanted)
        return Plan(
            actions=tuple(self._actions),
            time_slices=self._snapshot.time_slices,
            restored=restored,
            is_at_rest=not (missing or self._actions) and self._is_at_rest(),
        )

    def _is_at_rest(self) -> bool:
        loaded = self._snapshot.by_model
        waits = self._jobs != Jobs() or self._observed.waiting or self._snapshot.time_slices
        return not waits and len(self._snapshot.neurons) == 1 and all(map(self._stays, loaded))

    def _stays(self, model: str) -> bool:
        entry = self._catalogue.get(model)
        (replica, *others) = self._snapshot.replicas_of(model)
        is_ready = replica.status is ReplicaStatus.READY and not others
        return is_ready and entry is not None and entry.idle_ttl_s is None

    def _restore_drained(self) -> dict[str, frozenset[str]]:
        """Returns by neuron the models that are back or given up."""
        restored = {}
        for name, models in self._jobs.to_restore.items():
            neuron = self._snapshot.neuron(name)
            if neuron is not None and neuron.may_load:
                done = [model for model in models if self._is_restored(name, model)]
                if done:
                    restored[name] = frozenset(done)
        return restored

    def _is_restored(self, neuron_name: str, model: str) -> bool:
        """It is back with all its substitutes gone, or cannot be. Begins its load if that is
        due."""
        entry = self._catalogue.get(model)
        if entry is None:
            return True
        replicas = self._snapshot.replicas_of(model)
        held = next((one for one in replicas if one.neuron == neuron_name), None)
        if held is not None and (model, neuron_name) in self._jobs.evicting:
            return False  # not unloaded yet
        if held is not None:
            there = {one.neuron for one in replicas if one.status in SERVES_SOON}
            is_alone = len(there | self._pending[model]) <= entry.effective_max_replicas
            return held.status in REPLACEABLE or (held.status is ReplicaStatus.READY and is_alone)
        if neuron_name in self._pending[model] or not self._may_begin(model):
            return False
        room = find_room(
            entry,
            self._snapshot,
            self._catalogue,
            only=neuron_name,
            may_evict=False,
            tries_again=True,
        )
        if room.candidate is None:
            return True
        self._begin_load(entry, room.candidate)
        return False

    def _reconcile_model(self, model: str, replicas: Sequence[ReplicaView]) -> None:
        entry = self._catalogue.get(model)
        if entry is None:
            for replica in replicas:
                self._unload(unknown_leaves(replica))
            return
        loaded = staying(entry, self._snapshot)
        ready = [replica for replica in loaded if replica.status is ReplicaStatus.READY]
        if not ready:
            return
        digest = entry.spec_digest() if len(ready) > 1 else ready[0].spec_digest
        homes = {name for name, models in self._jobs.to_restore.items() if model in models}
        self._unload(surplus_leaves(entry, ready, digest, self._snapshot, homes))
        if self._observed.queue_long_s.get(model, 0.0) >= QUEUE_LONG_S:
            self._load_one_more(entry)

    def _load_one_more(self, entry: CatalogueEntry) -> None:
        held = [r for r in self._snapshot.replicas_of(entry.name) if r.status in HELD]
        is_under_way = any(r.status is not ReplicaStatus.READY for r in held)
        if len(held) < entry.effective_max_replicas and not is_under_way:
            self._load(entry, may_evict=False)

    def _move_leaving(self) -> None:
        for neuron in self._snapshot.neurons:
            for replica in neuron.replicas if neuron.may_serve else ():
                entry = self._catalogue.get(replica.model)
                why = "" if entry is None else why_it_leaves(entry, replica, self._snapshot)
                if self._jobs.overdue & {neuron.name, *stage_neurons(replica)}:
                    self._end(replica)
                elif why and replica.status is ReplicaStatus.ASLEEP:
                    self._unload(unload_of(replica, why))
                elif why and entry is not None and replica.status is ReplicaStatus.READY:
                    self._move(entry, replica, why)

    def _move(self, entry: CatalogueEntry, replica: ReplicaView, why: str) -> None:
        """The move leaves no gap where there is room. A draining replica leaves without room
        elsewhere, too, unless it is to be kept loaded."""
        elsewhere = staying(entry, self._snapshot)
        is_idle = (idle_age_s(replica) or 0.0) >= MOVE_IDLE_S
        if any(other.status is ReplicaStatus.READY for other in elsewhere):
            if is_idle:
                self._unload(unload_of(replica, f"{why}, and another one has it"))
        elif elsewhere or self._pending[entry.name] or entry.effective_min_replicas:
            return  # a missing kept model was handled already
        elif is_idle and why == DRAINS:
            self._unload(unload_of(replica, why))
        else:
            self._load(entry, may_evict=not is_idle)

    def _end(self, replica: ReplicaView) -> None:
        """Ends it also where an unload already waits for its requests."""
        if replica.status is not ReplicaStatus.FAILED:
            why = f"{DRAINS}, and the time for that is over"
            ends = Unload(neuron=replica.neuron, model=replica.model, reason=why, at_once=True)
            self._actions.append(ends)
            self._drains(replica.neuron, replica.model)

    def _kept(
        self, time_slices: Sequence[TimeSlice], wanted: Mapping[str, WaitingModel]
    ) -> tuple[TimeSlice, ...]:
        return tuple(
            one
            for one in time_slices
            if one.age_s < MAX_PROMISE_S
            and one.model in wanted
            and self._snapshot.neuron(one.neuron) is not None
            and not any(held.status in HELD for held in self._snapshot.replicas_of(one.model))
        )

    def _give_time_slices(self, wanted: Mapping[str, WaitingModel]) -> None:
        for model in sorted(wanted, key=lambda name: (-wanted[name].oldest_s, name)):
            self._give_time_slice(model)

    def _give_time_slice(self, model: str) -> None:
        entry, active = self._catalogue.get(model), self._snapshot.time_slices
        if entry is None or any(time_slice.model == model for time_slice in active):
            return
        if any(one.status not in REPLACEABLE for one in self._snapshot.replicas_of(model)):
            return
        candidate = find_room(entry, self._snapshot, self._catalogue).after_time_slices
        if candidate is None or candidate.ready_in_s > 0:
            return
        time_slice = TimeSlice(
            model=model,
            neuron=candidate.neuron,
            devices=candidate.devices,
            device_bytes=candidate.device_bytes or 0,
            stage_bytes=tuple(stage.memory_bytes for stage in candidate.stages),
            evicted=candidate.evict,
        )
        self._snapshot = replace(self._snapshot, time_slices=(*active, time_slice))
        for one in candidate.evicted:
            if one.replica.status is not ReplicaStatus.DRAINING:
                self._unload(unload_of(one.replica, f"{model} has waited for its time slice"))

    def _num_missing(self, entry: CatalogueEntry) -> int:
        held = {replica.neuron for replica in staying(entry, self._snapshot)}
        held |= self._pending[entry.name] | set(self._snapshot.absent_holders(entry.name))
        return entry.effective_min_replicas - len(held)

    def _load(self, entry: CatalogueEntry, *, may_evict: bool = True) -> None:
        if not self._may_begin(entry.name):
            return
        excluded = {
            replica.neuron
            for replica in self._snapshot.replicas_of(entry.name)
            if replica.status not in REPLACEABLE
        }
        room = find_room(
            entry,
            self._snapshot,
            self._catalogue,
            excluded=excluded | self._pending[entry.name],
            may_evict=may_evict,
        )
        if room.candidate is not None:
            self._begin_load(entry, room.candidate)

    def _begin_load(self, entry: CatalogueEntry, candidate: PlacementCandidate) -> None:
        load = candidate.load(entry.name)
        self._num_loads += 1
        self._actions.append(load)
        self._snapshot = with_load(self._snapshot, load, entry)

    def _may_begin(self, model: str) -> bool:
        return self._num_loads < MAX_LOADS_A_TICK and self._is_due(model)

    def _is_due(self, model: str) -> bool:
        num_failures = self._jobs.num_failures.get(model, 0)
        if num_failures == 0:
            return True
        wait_s = BACKOFF.wait_s(num_failures)
        return self._jobs.failed_age_s.get(model, wait_s) >= wait_s

    def _unload(self, unload: Unload | Sleep | None) -> None:
        if unload is None or (unload.model, unload.neuron) in self._jobs.unloading:
            return
        self._actions.append(unload)
        self._drains(unload.neuron, unload.model)

    def _drains(self, neuron: str, model: str) -> None:
        self._snapshot = with_status(self._snapshot, neuron, model, ReplicaStatus.DRAINING)
