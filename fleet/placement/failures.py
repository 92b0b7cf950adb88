"""Back-off after failed loads, and after stages that neurons could not hold."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.entry import DeviceKind
from fleet.live.snapshot import FleetSnapshot, HeldStageView, ReplicaView
from inference.backoff import Backoff
from inference.loading.model_costs import unpacked
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import TOO_LARGE, LoadFailure

FAILED_LOAD_BACKOFF_S = 30.0
"""The same neuron does not retry for this long, twice as long after each further failure."""
BACKOFF = Backoff(first_s=FAILED_LOAD_BACKOFF_S, max_s=600.0)
UNFIT_BACKOFF_S = 5.0
"""For the first load that did not fit and reported its need: the next one is placed by it."""
DOES_NOT_FIT = "does_not_fit"
LOST_ITS_ROOM = "lost_its_room"
"""The replicas to evict were in use after all. No failure: the load is retried."""
NEURON_RESTARTED = "neuron_restarted"
"""The process that loaded is gone. No failure: the load is retried."""
FAILED_STAGE_BACKOFF_S = 30.0
"""A neuron that could not hold a stage is left out for the same model for this long."""
PERMANENT_BACKOFF_S = 600.0
"""The same where its next try would fail too, until its files or its entry change."""
UNKNOWN = LoadFailure(code="unknown", message="no reason was given")
LOCAL_SOURCE = "path:"
LOCAL_FAILURES = frozenset({"exceeds_device", "repo_fetch_failed"})
"""Permanent on that neuron; another one may be larger, or have a token for the files."""


@dataclass(frozen=True, slots=True)
class FailedLoads:
    recent: tuple[ReplicaView, ...] = ()
    unfit: tuple[ReplicaView, ...] = ()
    """Recent failures that reported their need and are retried soon."""
    unchanged: tuple[ReplicaView, ...] = ()
    """Loads that would fail again until memory is freed on their neuron."""
    permanent: tuple[ReplicaView, ...] = ()
    """Loads that are not retried until the model's files or entry change."""
    everywhere: ReplicaView | None = None
    """One of those that would fail the same on every neuron."""

    @property
    def neurons(self) -> frozenset[str]:
        return frozenset(replica.neuron for replica in self._failed)

    @property
    def neurons_as_stages(self) -> frozenset[str]:
        """Excluded for stages. The whole model's lack of memory on one of them does not count."""
        return frozenset(
            replica.neuron
            for replica in self._failed
            if len(replica.devices) > 1 or not _failed_with(replica, TOO_LARGE)
        )

    @property
    def _failed(self) -> tuple[ReplicaView, ...]:
        return (*self.recent, *self.unchanged, *self.permanent)


NONE_FAILED = FailedLoads()


def with_reported_costs(entry: CatalogueEntry, replicas: Sequence[ReplicaView]) -> CatalogueEntry:
    """Adds the layers' costs that a failed load has just reported."""
    if entry.costs is not None:
        return entry
    for replica in replicas:
        costs = None if replica.failure is None else replica.failure.costs
        if costs is not None and replica.spec_digest in ("", entry.spec_digest()):
            with contextlib.suppress(ValueError):
                return dataclasses.replace(entry, costs=unpacked(costs))
    return entry


def failed_loads(entry: CatalogueEntry, replicas: Sequence[ReplicaView]) -> FailedLoads:
    """``replicas`` are the model's own. Loads of another spec do not count."""
    failed = [replica for replica in replicas if replica.status is ReplicaStatus.FAILED]
    if not failed:
        return NONE_FAILED
    digest = entry.spec_digest()
    current = [replica for replica in failed if replica.spec_digest in ("", digest)]
    permanent = tuple(r for r in current if r.failure is not None and r.failure.is_permanent)
    everywhere = None
    if not entry.source.startswith(LOCAL_SOURCE):  # otherwise every host has files of its own
        everywhere = next((r for r in permanent if not _failed_with(r, LOCAL_FAILURES)), None)
    retried = [r for r in current if r not in permanent]
    unfit = [r for r in retried if _is_placed_by_its_need(entry, r)]
    recent = tuple(
        r for r in retried if not r.is_unchanged and retry_in_s(r, is_unfit=r in unfit) > 0
    )
    return FailedLoads(
        recent=recent,
        unfit=tuple(r for r in recent if r in unfit),
        unchanged=tuple(r for r in retried if r.is_unchanged),
        permanent=permanent,
        everywhere=everywhere,
    )


def retry_in_s(failed: ReplicaView, *, is_unfit: bool = False) -> float:
    if failed.failure is not None and failed.failure.code == LOST_ITS_ROOM:
        return 0.0
    num_failures = max(1, failed.num_failed_loads)
    if is_unfit and num_failures == 1:
        return max(0.0, UNFIT_BACKOFF_S - failed.status_age_s)
    return max(0.0, BACKOFF.wait_s(num_failures) - failed.status_age_s)


def _is_placed_by_its_need(entry: CatalogueEntry, failed: ReplicaView) -> bool:
    """The failed load reported its need, and no measurement of the model there is smaller."""
    failure = failed.failure
    if len(failed.devices) > 1 and entry.tensor_parallel == 1 and entry.costs is not None:
        return False  # one stage's need
    if failure is None or failure.code != DOES_NOT_FIT or failure.needed_bytes is None:
        return False
    kind: DeviceKind = "cpu" if "cpu" in failed.devices else "cuda"
    known_bytes = entry.needed_memory_bytes(failed.neuron, kind)
    needed_bytes = failure.needed_bytes * max(1, len(failed.devices))
    return known_bytes is None or known_bytes >= needed_bytes


def _failed_with(replica: ReplicaView, codes: Collection[str]) -> bool:
    return replica.failure is not None and replica.failure.code in codes


def failing_stages(entry: CatalogueEntry, snapshot: FleetSnapshot) -> tuple[HeldStageView, ...]:
    digest = entry.spec_digest()
    return tuple(
        one
        for one in snapshot.held_stages()
        if one.stage.model == entry.name
        and one.is_failed
        and one.stage.spec_digest in ("", digest)
        and stage_retry_in_s(one) > 0
    )


def stage_retry_in_s(failed: HeldStageView) -> float:
    failure = failed.stage.failure or UNKNOWN
    if failure.code == LOST_ITS_ROOM:
        return 0.0
    backoff_s = PERMANENT_BACKOFF_S if failure.is_permanent else FAILED_STAGE_BACKOFF_S
    return backoff_s - failed.status_age_s
