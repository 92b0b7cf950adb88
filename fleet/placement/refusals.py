"""Placement's refusals: why a model cannot be loaded now, as text and numbers for the client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import Admission
from fleet.live.snapshot import FleetSnapshot, HeldStageView, ReplicaView
from fleet.placement.capacity import DeviceCapacity
from fleet.placement.decisions import Reject
from fleet.placement.division import Devices, Division, why_not_divided
from fleet.placement.failures import LOCAL_SOURCE, UNKNOWN, retry_in_s, stage_retry_in_s
from fleet.placement.needs import Needs
from fleet.placement.returning import (
    UnavailableHost,
    recovering,
    unavailable_hosts,
    why_unmet,
)
from fleet.placement.room import Room
from fleet.placement.stage_plans import StageRefusal
from inference.protocol.load_report import SUGGESTIONS
from inference.settings.neuron import MEMORY_LIMIT, STAGE_LISTEN

NO_NEURON_RETRY_AFTER_S = 5.0
NOT_ENOUGH_MEMORY_RETRY_AFTER_S = 30.0
UNCHANGED_RETRY_AFTER_S = 60.0
UNCHANGED = (
    ". It is tried again once more is free there, its files or its catalogue entry change, or an "
    "operator loads it"
)
SUGGESTION = (
    "Change device, min_devices, tensor_parallel or min_device_vram_mb of the model, or add a host "
    "with such devices."
)


def refuse(
    room: Room,
    snapshot: FleetSnapshot,
    returning: Sequence[UnavailableHost] = (),
    only: str | None = None,
) -> Reject:
    """``returning``: hosts that could hold it later: the refusal is temporary."""
    entry, failed = room.entry, room.failed
    if failed.recent:
        oldest = min(failed.recent, key=lambda replica: (retry_in_s(replica), replica.neuron))
        return _load_failed(entry, oldest, max(1.0, retry_in_s(oldest)))
    short = _short(room)
    if short is not None and short.retry_after_s is not None:
        return short
    if returning:
        return recovering(entry, returning)
    if barred := _barred(room):
        return barred
    if failed.unchanged:
        return _load_failed(entry, failed.unchanged[0], UNCHANGED_RETRY_AFTER_S, UNCHANGED)
    if short is not None:
        return short
    if failed.permanent:
        return never_loads(entry, failed.permanent[0])
    return unmet_devices(entry, snapshot, only) or _nowhere(entry, snapshot)


def never_loads(entry: CatalogueEntry, failed: ReplicaView) -> Reject:
    """No Retry-After: nothing is retried until files or entry change, or the hub answers."""
    failure = failed.failure
    assert failure is not None, "a failure without a report is not permanent"
    again = (
        "tried again once the hub answers for it, its catalogue entry changes,"
        if failure.code == "repo_fetch_failed"
        else "not tried again until its files or its catalogue entry change,"
    )
    return Reject(
        code=failure.code,
        message=f"{failed.model} cannot be loaded: {failure.message} (on {failed.neuron}). It is "
        f"{again} or an operator loads it",
        retry_after_s=None,
        model_id=_model_id(entry),
        suggestion=failure.suggestion,
    )


def stage_failed(entry: CatalogueEntry, failing: Sequence[HeldStageView]) -> Reject:
    first = min(failing, key=lambda one: (stage_retry_in_s(one), one.neuron))
    failure = first.stage.failure or UNKNOWN
    return Reject(
        code="load_failed",
        message=f"Loading {entry.name} failed on {first.neuron}, which was to hold its layers "
        f"{first.stage.layers[0]} to {first.stage.layers[1] - 1}: {failure.message}",
        retry_after_s=max(1.0, stage_retry_in_s(first)),
        suggestion=failure.suggestion,
    )


def _model_id(entry: CatalogueEntry) -> str:
    """The source for clients, without a host's local paths."""
    return f"path:{entry.name}" if entry.source.startswith(LOCAL_SOURCE) else entry.source


def _load_failed(
    entry: CatalogueEntry, failed: ReplicaView, retry_after_s: float, again: str = ""
) -> Reject:
    why = failed.failure.message if failed.failure else "no reason was given"
    return Reject(
        code="load_failed",
        message=f"Loading {failed.model} failed on {failed.neuron}: {why}{again}",
        retry_after_s=retry_after_s,
        model_id=_model_id(entry),
        suggestion=failed.failure.suggestion if failed.failure else "",
    )


def _barred(room: Room) -> Reject | None:
    """A broken driver is the host's state: the model is available again with its cards."""
    for neuron, why in room.capacity.barred(room.entry).items():
        if neuron in (room.entry.pinned_on or (neuron,)):
            return Reject(
                code="cuda_unavailable",
                message=f"The cards of {neuron} cannot be used: {why}. HELEXA_DEVICE=cpu has its "
                "neuron load on processors",
                retry_after_s=NOT_ENOUGH_MEMORY_RETRY_AFTER_S,
            )
    return None


def _not_enough_memory(entry: CatalogueEntry, message: str) -> Reject:
    return Reject(
        code="not_enough_memory",
        message=message,
        retry_after_s=NOT_ENOUGH_MEMORY_RETRY_AFTER_S,
        model_id=_model_id(entry),
        suggestion=SUGGESTIONS["does_not_fit"],
    )


def _exceeds_device(
    entry: CatalogueEntry, message: str, suggestion: str = SUGGESTIONS["exceeds_device"]
) -> Reject:
    return Reject(
        code="exceeds_device",
        message=message,
        retry_after_s=None,
        model_id=_model_id(entry),
        suggestion=suggestion,
    )


def _short(room: Room) -> Reject | None:
    entry, needs = room.entry, Needs(room.entry)
    division = Division.of(needs, room.capacity)
    if division is not None:
        return _short_divided(entry, division)
    closest = min(_lacking(room, needs), key=lambda one: one[:4], default=None)
    if closest is None:
        return None
    is_too_small, _, neuron, name, needed, device = closest
    is_limited = device.info.installed_memory_bytes is not None
    by_limit = f" by its {MEMORY_LIMIT.name}" if is_limited else ""
    many = f" on each of {needs.num_devices} devices" if needs.num_devices > 1 else ""
    if is_too_small:
        why = why_not_divided(entry)
        only_whole = "" if why is None else f" It is not divided over devices: {why}."
        return _exceeds_device(
            entry,
            f"{entry.name} needs {max(needed, needs.least_total_bytes):,} bytes of memory{many}, "
            f"and {name} of {neuron} has {device.info.total_memory_bytes:,} in all{by_limit}; no "
            "neuron comes closer",
            SUGGESTIONS["exceeds_device"] + only_whole,
        )
    return _not_enough_memory(
        entry,
        f"{entry.name} needs {needed:,} bytes of free memory on {neuron}{many}, and "
        f"{max(0, device.free_bytes(entry.name)):,} are free on its {name}{by_limit}; what else is "
        "loaded there may not leave for it, and no neuron comes closer",
    )


def _lacking(room: Room, needs: Needs) -> Iterator[tuple[bool, int, str, str, int, DeviceCapacity]]:
    """Decisive devices: is too small, bytes lacking, neuron, name, bytes needed, device."""
    for kind in needs.kinds:
        for neuron, devices in room.capacity.of_kind(room.entry, kind, room.failed.neurons).items():
            needed = needs.device_bytes(neuron, kind)
            if needed is None or len(devices) < needs.num_devices:
                continue
            least = max(needed, needs.least_total_bytes)
            options = [
                (
                    device.info.total_memory_bytes < least,
                    needed - device.free_bytes(room.entry.name),
                    neuron,
                    device.name,
                    needed,
                    device,
                )
                for device in devices
            ]
            yield sorted(options, key=lambda one: one[:4])[needs.num_devices - 1]


def _short_divided(entry: CatalogueEntry, division: Division) -> Reject:
    in_all, is_spread = division.in_all(), division.spread == "fleet"
    if isinstance(in_all, StageRefusal):
        hosts = f"all hosts with {STAGE_LISTEN.name}" if is_spread else "one host"
        return _exceeds_device(
            entry,
            f"{entry.name} fits no device, nor, divided, the devices of {hosts}: {in_all.words}",
        )
    now = division.now()
    lacking = f": {now.words}" if isinstance(now, StageRefusal) else ""
    # Over several hosts it waits for no time slice.
    in_use = "is in use, or " if is_spread else ""
    return _not_enough_memory(
        entry,
        f"{entry.name} fits no device, and is divided over {in_all.where} once there is "
        f"room{lacking}; what else is loaded there {in_use}may not leave for it",
    )


def _nowhere(entry: CatalogueEntry, snapshot: FleetSnapshot) -> Reject:
    """Refused or revoked hosts are not waited for."""
    states = snapshot.desired_states.by_neuron
    hosts = entry.pinned_on or tuple(sorted(states))
    refused = [
        name for name in hosts if name in states and states[name].admission is Admission.REFUSED
    ]
    is_final = bool(hosts) and len(refused) == len(hosts)
    message = f"No neuron that could run {entry.name} is online"
    if is_final:
        message = (
            f"{entry.name} can run on {', '.join(hosts)} only, which was refused or revoked: "
            "nothing goes there until an operator admits or invites it again"
        )
    elif entry.pinned_on and not any(snapshot.neuron(name) for name in entry.pinned_on):
        message = f"{entry.name} may run on {', '.join(entry.pinned_on)} only, which is away"
    return Reject(
        code="no_neuron",
        message=message,
        retry_after_s=None if is_final else NO_NEURON_RETRY_AFTER_S,
    )


def unmet_devices(
    entry: CatalogueEntry, snapshot: FleetSnapshot, only: str | None = None
) -> Reject | None:
    """Permanent: no host of the fleet has the devices. ``None``: one has, or they are unknown."""
    known: dict[str, Devices] = {
        neuron.name: neuron.devices for neuron in snapshot.neurons if neuron.is_admitted
    }
    known |= {host.name: host.devices for host in unavailable_hosts(snapshot)}
    hosts = {
        name: devices
        for name, devices in known.items()
        if name in (entry.pinned_on or (name,)) and only in (None, name)
    }
    if not hosts or not all(hosts.values()) or not (why := why_unmet(Needs(entry), hosts)):
        return None
    return _exceeds_device(entry, f"{entry.name} {why}", SUGGESTION)
