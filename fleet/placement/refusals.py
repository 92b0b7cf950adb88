"""Placement's refusals: why a model cannot be loaded now, as text and numbers for the client."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import Admission
from fleet.live.measurements import DeviceKind
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement.decisions import Reject
from fleet.placement.devices.capacity import DeviceCapacity, FleetCapacity
from fleet.placement.devices.needs import Needs
from fleet.placement.devices.staged import Division, why_not_divided
from fleet.placement.failures import LOCAL_SOURCE, FailedLoads, retry_in_s
from fleet.placement.returning import (
    Devices,
    UnavailableHost,
    recovering,
    unavailable_hosts,
    why_unmet,
)
from fleet.placement.stages.plans import StageRefusal
from inference.protocol.load_progress import SUGGESTIONS
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


def never_loads(entry: CatalogueEntry, failed: ReplicaView) -> Reject:
    """A permanent failure: nothing is retried until its files or its entry change, or the hub
    answers for it, so there is no Retry-After."""
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


def _model_id(entry: CatalogueEntry) -> str:
    """The source for clients, without a host's local paths."""
    return f"path:{entry.name}" if entry.source.startswith(LOCAL_SOURCE) else entry.source


def refuse(
    entry: CatalogueEntry,
    snapshot: FleetSnapshot,
    capacity: FleetCapacity,
    failed: FailedLoads,
    returning: Sequence[UnavailableHost] = (),
    only: Collection[str] = (),
    division: Division | None = None,
) -> Reject:
    """``returning`` are hosts that could hold it once they are back: while there are any, the
    refusal is temporary. ``only``: the neurons that count, where not all do. ``division``: the
    entry's on ``capacity``, if made already."""
    if failed.recent:
        oldest = min(failed.recent, key=lambda replica: (retry_in_s(replica), replica.neuron))
        return _load_failed(entry, oldest, max(1.0, retry_in_s(oldest)))
    short = _short(entry, capacity, failed, division)
    if short is not None and short.retry_after_s is not None:
        return short
    if returning:
        return recovering(entry, returning)
    if barred := _barred(entry, capacity):
        return barred
    if failed.unchanged:
        return _load_failed(entry, failed.unchanged[0], UNCHANGED_RETRY_AFTER_S, UNCHANGED)
    if short is not None:
        return short
    if failed.permanent:
        return never_loads(entry, failed.permanent[0])
    if unmet := unmet_devices(entry, snapshot, _model_id(entry), only):
        return unmet
    return _nowhere(entry, snapshot)


def _barred(entry: CatalogueEntry, capacity: FleetCapacity) -> Reject | None:
    """A broken driver is the host's state: the model is available again with its cards."""
    for neuron, why in capacity.barred(entry).items():
        if neuron in (entry.pinned_on or (neuron,)):
            return Reject(
                code="cuda_unavailable",
                message=f"The cards of {neuron} cannot be used: {why}. HELEXA_DEVICE=cpu has its "
                "neuron load on processors",
                retry_after_s=NOT_ENOUGH_MEMORY_RETRY_AFTER_S,
            )
    return None


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


def _short(
    entry: CatalogueEntry,
    capacity: FleetCapacity,
    failed: FailedLoads,
    division: Division | None,
) -> Reject | None:
    """The refusal of the neuron that comes closest; those with large enough devices come first."""
    needs = Needs(entry)
    if division is not None or (division := Division.of(needs, capacity)) is not None:
        return _short_divided(entry, division)
    closest = min(
        (
            found
            for kind in needs.kinds
            for neuron, here in capacity.by_kind[kind].items()
            if neuron not in failed.neurons
            and neuron in (entry.pinned_on or (neuron,))
            and not (kind == "cpu" and neuron in capacity.barred(entry))
            if (found := _lacking(needs, kind, neuron, here)) is not None
        ),
        default=None,
    )
    if closest is None:
        return None
    is_too_small, _, neuron, name, needed, free, total = closest
    by_limit = f" by its {MEMORY_LIMIT.name}" if _is_limited(capacity, neuron, name) else ""
    many = f" on each of {needs.num_devices} devices" if needs.num_devices > 1 else ""
    if is_too_small:
        return Reject(
            code="exceeds_device",
            message=f"{entry.name} needs {needed:,} bytes of memory{many}, and {name} of {neuron} "
            f"has {total:,} in all{by_limit}; no neuron comes closer",
            retry_after_s=None,
            model_id=_model_id(entry),
            suggestion=_larger(entry),
        )
    return Reject(
        code="not_enough_memory",
        message=f"{entry.name} needs {needed:,} bytes of free memory on {neuron}{many}, and "
        f"{max(0, free):,} are free on its {name}{by_limit}; what else is loaded there may not "
        "leave for it, and no neuron comes closer",
        retry_after_s=NOT_ENOUGH_MEMORY_RETRY_AFTER_S,
        model_id=_model_id(entry),
        suggestion=SUGGESTIONS["does_not_fit"],
    )


def _short_divided(entry: CatalogueEntry, division: Division) -> Reject:
    in_all = division.in_all()
    if isinstance(in_all, StageRefusal):
        return Reject(
            code="exceeds_device",
            message=f"{entry.name} fits no device, nor, divided, {_devices_of(division)}: "
            f"{in_all.words}",
            retry_after_s=None,
            model_id=_model_id(entry),
            suggestion=SUGGESTIONS["exceeds_device"],
        )
    now = division.now()
    lacking = f": {now.words}" if isinstance(now, StageRefusal) else ""
    # Over several hosts it waits for no time slice.
    in_use = "is in use, or " if division.spread == "fleet" else ""
    return Reject(
        code="not_enough_memory",
        message=f"{entry.name} fits no device, and is divided over {in_all.where} once there is "
        f"room{lacking}; what else is loaded there {in_use}may not leave for it",
        retry_after_s=NOT_ENOUGH_MEMORY_RETRY_AFTER_S,
        model_id=_model_id(entry),
        suggestion=SUGGESTIONS["does_not_fit"],
    )


def _devices_of(division: Division) -> str:
    if division.spread == "fleet":
        return f"the devices of all hosts with {STAGE_LISTEN.name}"
    return "the devices of one host"


def _larger(entry: CatalogueEntry) -> str:
    suggestion = SUGGESTIONS["exceeds_device"]
    why = why_not_divided(entry)
    return suggestion if why is None else f"{suggestion} It is not divided over devices: {why}."


def _is_limited(capacity: FleetCapacity, neuron: str, device: str) -> bool:
    return any(
        one.info.installed_memory_bytes is not None
        for by_name in capacity.by_kind.values()
        if neuron in by_name
        for one in by_name[neuron]
        if one.name == device
    )


def _lacking(
    needs: Needs, kind: DeviceKind, neuron: str, devices: Sequence[DeviceCapacity]
) -> tuple[bool, int, str, str, int, int, int] | None:
    """The missing bytes on the decisive device. ``None``: nothing with a number."""
    needed = needs.device_bytes(neuron, kind)
    if needed is None or len(devices) < needs.num_devices:
        return None
    model = needs.entry.name

    def lacking(device: DeviceCapacity) -> tuple[bool, int, str]:
        total = device.info.total_memory_bytes
        is_too_small = total < max(needed, needs.least_total_bytes)
        return (is_too_small, needed - device.free_bytes(model), device.name)

    deciding = sorted(devices, key=lacking)[needs.num_devices - 1]
    is_too_small, missing, name = lacking(deciding)
    total = deciding.info.total_memory_bytes
    least = max(needed, needs.least_total_bytes) if is_too_small else needed
    return (is_too_small, missing, neuron, name, least, deciding.free_bytes(model), total)


def _nowhere(entry: CatalogueEntry, snapshot: FleetSnapshot) -> Reject:
    """No host accepts loads of it. Refused or revoked hosts are not waited for."""
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
    entry: CatalogueEntry, snapshot: FleetSnapshot, model_id: str, only: Collection[str] = ()
) -> Reject | None:
    """Refuses a model permanently whose required devices no host of the fleet has. ``only``: the
    neurons that count, where not all do. ``None``: a host has such devices, or hosts' devices are
    unknown."""
    known: dict[str, Devices] = {
        neuron.name: neuron.devices for neuron in snapshot.neurons if neuron.is_admitted
    }
    known |= {host.name: host.devices for host in unavailable_hosts(snapshot)}
    hosts = {
        name: devices
        for name, devices in known.items()
        if name in (entry.pinned_on or (name,)) and name in (only or (name,))
    }
    if not hosts or not all(hosts.values()) or not (why := why_unmet(Needs(entry), hosts)):
        return None
    return Reject(
        code="exceeds_device",
        message=f"{entry.name} {why}",
        retry_after_s=None,
        model_id=model_id,
        suggestion=SUGGESTION,
    )
