"""Watches loads that failed and would fail again until something changes.

    FAILED, unchanged ─▶ its files are others ─────────▶ the replica is dropped
                      ─▶ more is free (memory, disk) ──▶ it counts as changed

Until then the control and gateways do not try the model there again, except by hand. Files on this
disk, downloaded ones too, are looked at often, the hub is asked rarely. A download that was removed
has not changed until it is there again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from inference.loading.sources.disk import free_disk_bytes
from inference.loading.sources.hub_cache import hub_cache_dir
from inference.loading.sources.source_identity import hub_identity, local_identity, weights_identity
from inference.neuron.loads.load import Load
from inference.neuron.replicas.replica import Replica
from inference.neuron.replicas.retries import Conditions, has_improved
from inference.protocol.load import LoadSpec
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


LOOK_S = 2.0
ASK_HUB_S = 300.0


class FailedLoads:
    def __init__(
        self,
        replicas: Callable[[], Iterable[Replica]],
        *,
        free_bytes: Callable[[], Mapping[str, int]],
        cache_dir: Path,
        ask_hub: Callable[[LoadSpec], str | None] = hub_identity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``free_bytes``: of each device, by its name."""
        self._replicas = replicas
        self._free_bytes = free_bytes
        self._directory = hub_cache_dir(cache_dir)
        self._ask_hub = ask_hub
        self._clock = clock
        self._hub: dict[Load, tuple[str | None, float]] = {}
        """The hub's first answer for each failed load, and when it was last asked."""
        self._cached: dict[Load, str | None] = {}
        """The downloaded weights of each failed load, as they were first found."""
        self._disk_free: dict[Load, int | None] = {}
        """Free bytes on the disk when each failure was first found."""
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._look_for_ever, name="failed-loads")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def look(self) -> None:
        """Blocks while the hub is asked."""
        failed = [one for one in self._replicas() if one.unchanged_failure is not None]
        now = Conditions(
            device_free_bytes=self._free_bytes(), disk_free_bytes=free_disk_bytes(self._directory)
        )
        self._hub = {
            replica.load: self._hub[replica.load] for replica in failed if replica.load in self._hub
        }
        self._cached = {
            replica.load: self._cached.get(replica.load, weights_identity(replica.load.weights))
            for replica in failed
        }
        self._disk_free = {
            replica.load: self._disk_free.get(replica.load, now.disk_free_bytes)
            for replica in failed
        }
        for replica in failed:
            if self._is_mended(replica):
                log.info("%s may be loaded again: its files have changed", replica.spec.model)
                replica.drain()
            elif self._has_improved(replica, now):
                log.info("%s may be loaded again: more is free now", replica.spec.model)
                replica.improve()

    def _has_improved(self, replica: Replica, now: Conditions) -> bool:
        load, failure = replica.load, replica.unchanged_failure
        then = Conditions(device_free_bytes=load.free_before, disk_free_bytes=self._disk_free[load])
        return failure is not None and has_improved(failure, load.devices, then, now)

    def _is_mended(self, replica: Replica) -> bool:
        known = replica.load.file_identity
        if known is not None and local_identity(replica.spec) != known:
            return True
        cached = weights_identity(replica.load.weights)
        if cached is not None and cached != self._cached[replica.load]:
            return True
        first, asked_s = self._hub.get(replica.load, (None, float("-inf")))
        now_s = self._clock()
        if now_s - asked_s < ASK_HUB_S:
            return False
        was_asked = replica.load in self._hub
        identity = self._ask_hub(replica.spec)
        self._hub[replica.load] = (first or identity, now_s)
        if _was_refused_by_hub(replica):  # what it may read is known to the hub alone
            return was_asked and identity is not None
        return None not in (first, identity) and first != identity

    def _look_for_ever(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self.look()


def _was_refused_by_hub(replica: Replica) -> bool:
    failure = replica.unchanged_failure
    return failure is not None and failure.code == "repo_fetch_failed"
