"""Places a request for a model. Pure: an entry and a snapshot in, one decision out.

    READY replica ────────────▶ Route    the conversation's own, else the least busy
    LOADING or RECOVERING ────▶ Wait     a load is under way, or its neuron blinks
    asleep, and room for it ──▶ Load     it wakes: a load that is several times cheaper
    room on a device ─────────▶ Load     cards before processors, where it can do most
    room if idle ones leave ──▶ Load     that names what leaves first: where least is lost
    no device could hold it ──▶ Load     divided over devices of one neuron, in the same ways,
                                         or of several where no one neuron could hold it
    room after time slices ───▶ Wait     those that are in use there keep theirs first
    only DRAINING ────────────▶ Wait     it may be loaded again once it is gone
    its host is drained ──────▶ Wait     it is served there after the drain
    did not fit just now ─────▶ Wait     what it needs is known in a moment, and placed by
    its host is away ─────────▶ Reject   model_recovering, with when its host is expected back
    else ─────────────────────▶ Reject   with the reason and when to come back, if ever

Models evicted for a load move to free memory elsewhere, without another eviction.

    free memory in pieces:  a [ old 10 | free 6 ]   b [ free 12 ]      new needs 14
    the load, and a move:   a [ new 14          ]   b [ old 10 | ]     nothing is evicted

Busy and pinned models never move, nor those that can sleep in place, or that another neuron has as
well. Evictions prefer models that can move (``FleetCapacity``).
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView, load_estimate
from fleet.placement.capacity import HELD, Catalogue, idle_age_s, may_sleep
from fleet.placement.decisions import Decision, Load, Reject, Wait, with_load
from fleet.placement.failures import retry_in_s
from fleet.placement.refusals import never_loads, refuse, stage_failed
from fleet.placement.returning import UnavailableHost, awaited_host, returning_hosts
from fleet.placement.room import WAKE_AGAIN_S, Room, find_room, has_just_failed, reachable
from fleet.placement.targets import route
from inference.protocol.heartbeat import ReplicaStatus

GONE_ETA_S = 5.0
"""For a neuron that fell silent: by then it is back, or the model is loaded elsewhere."""


def place(
    entry: CatalogueEntry,
    snapshot: FleetSnapshot,
    *,
    catalogue: Catalogue | None = None,
    tries_again: bool = False,
) -> Decision:
    """Nothing is evicted without ``catalogue``. ``tries_again``: ignores earlier failures."""
    if routed := route(entry, snapshot):
        return routed
    replicas = reachable(snapshot, entry.name)
    if under_way := _with_status(replicas, ReplicaStatus.LOADING, ReplicaStatus.RECOVERING):
        return _wait(entry, min(under_way, key=_soonest))
    if absent := snapshot.absent_holders(entry.name):
        reason = f"{entry.name} is on {' and '.join(absent)}, which has just fallen silent"
        return Wait(neuron=absent[0], model=entry.name, reason=reason, eta_s=GONE_ETA_S)
    if held := _stages_under_way(entry.name, snapshot):
        return held
    draining = _with_status(replicas, ReplicaStatus.DRAINING)
    room = find_room(
        entry,
        snapshot,
        catalogue,
        excluded={replica.neuron for replica in draining},
        tries_again=tries_again,
    )
    if room.failed.everywhere is not None:
        return never_loads(entry, room.failed.everywhere)
    if room.candidate is not None:
        return room.candidate.load(entry.name)
    if draining:
        return _wait(entry, min(draining, key=_soonest))
    if (waits := _wait_for_room(entry, room)) is not None:
        return waits
    permanent = {replica.neuron for replica in room.failed.permanent}
    returning = returning_hosts(room.entry, snapshot, excluded=permanent)
    if drained := awaited_host(returning, replicas, snapshot):
        return _wait_for_drain(entry, drained, replicas)
    if room.failing:
        return stage_failed(entry, room.failing)
    return refuse(room, snapshot, returning)


def place_on(
    entry: CatalogueEntry,
    neuron: NeuronView,
    snapshot: FleetSnapshot,
    catalogue: Catalogue | None = None,
) -> Load | Reject:
    """Ignores earlier failures: the operator chose the neuron."""
    room = find_room(entry, snapshot, catalogue, only=neuron.name, tries_again=True)
    if room.candidate is not None:
        return room.candidate.load(entry.name)
    return refuse(room, snapshot, only=neuron.name)


def _stages_under_way(model: str, snapshot: FleetSnapshot) -> Wait | None:
    """No replica uses these stages yet, or any more."""
    held = [one for one in snapshot.held_stages() if one.stage.model == model and not one.is_failed]
    if not held:
        return None
    neurons = sorted({one.neuron for one in held})
    return Wait(
        neuron=held[0].stage.engine_neuron,
        model=model,
        reason=f"{model} is loaded on several hosts, and stages of it are on "
        f"{' and '.join(neurons)}",
    )


def _with_status(
    replicas: Sequence[ReplicaView], *statuses: ReplicaStatus
) -> tuple[ReplicaView, ...]:
    return tuple(replica for replica in replicas if replica.status in statuses)


def _soonest(replica: ReplicaView) -> tuple[float, str]:
    return (float("inf") if replica.eta_s is None else replica.eta_s, replica.neuron)


def _wait(entry: CatalogueEntry, replica: ReplicaView) -> Wait:
    reason = f"{replica.model} is {replica.status} on {replica.neuron}"
    progress = replica.progress
    if progress is None:
        return Wait(neuron=replica.neuron, model=replica.model, reason=reason)
    estimate = load_estimate(
        stage=progress.stage,
        done=progress.done,
        total=progress.total,
        stage_elapsed_s=replica.stage_age_s,
        engine_elapsed_s=replica.engine_age_s,
        last_load_s=entry.last_load_s(replica.neuron),
    )
    stage: str = progress.stage
    if estimate.share is None and progress.total:
        stage = f"{stage} {progress.done / progress.total:.0%}"
    return Wait(
        neuron=replica.neuron,
        model=replica.model,
        reason=f"{reason} ({stage})",
        eta_s=estimate.left_s,
        share=estimate.share,
    )


def _wait_for_room(entry: CatalogueEntry, room: Room) -> Wait | None:
    if (candidate := room.after_time_slices) is not None:
        where = f"{' and '.join(candidate.devices)} of {candidate.neuron}"
        users = ", ".join(candidate.evict) or "others"
        return Wait(
            neuron=candidate.neuron,
            model=entry.name,
            reason=f"{entry.name} waits for a time slice on {where}, which {users} use",
            eta_s=candidate.ready_in_s,
            needs_time_slice=True,
        )
    if unfit := room.failed.unfit:
        replica = min(unfit, key=lambda replica: (-replica.status_age_s, replica.neuron))
        return Wait(
            neuron=replica.neuron,
            model=entry.name,
            reason=f"{entry.name} did not fit on {replica.neuron}, and room is looked for",
            eta_s=retry_in_s(replica, is_unfit=True),
        )
    if any(map(has_just_failed, room.asleep)):
        neuron = min(replica.neuron for replica in room.asleep)
        reason = f"{entry.name} sleeps on {neuron} and could not be woken just now"
        return Wait(neuron=neuron, model=entry.name, reason=reason, eta_s=WAKE_AGAIN_S)
    return None


def _wait_for_drain(
    entry: CatalogueEntry, host: UnavailableHost, replicas: Sequence[ReplicaView]
) -> Wait:
    num_running = sum(one.num_requests for one in replicas if one.neuron == host.name)
    running = f" and finishes {num_running} of its requests" if num_running else ""
    return Wait(
        neuron=host.name,
        model=entry.name,
        reason=f"{entry.name} waits for {host.name}, which {host.how_long}{running}",
        eta_s=host.returns_in_s,
        is_for_drain=True,
    )


def moves_for(load: Load, snapshot: FleetSnapshot, catalogue: Catalogue) -> tuple[Load, ...]:
    """The loads elsewhere of models evicted for ``load``; each takes the earlier ones into account,
    and none evicts. One on the same neuron begins once the model is unloaded."""
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
        move = room.candidate.load(moved.name)
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
