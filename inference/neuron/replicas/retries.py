"""Restarts of dead engines, retries of failed loads, and reloads after a restart of the neuron.

A failed load may be retried when what its failure depended on has changed:

    does_not_fit, out_of_memory     more memory is free on as many devices
    disk_full                       more of the disk is free
    engine_crashed, device_fault …  chance, a few times; then as for memory
    download_failed, load_stalled   nothing that this host could see: time alone
    stage_unreachable               the same
    unknown_architecture …          its files alone

Until then the control and gateways do not retry it on this neuron, except by hand. A download that
was removed has not changed until it exists again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import redis
from redis.client import Pipeline

from inference.backoff import Backoff
from inference.loading.sources.disk import free_disk_bytes
from inference.loading.sources.hub_sources import hub_cache_dir
from inference.loading.sources.sources import hub_identity, local_identity, weights_identity
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import Load
from inference.protocol.delivery import blame, load_mark
from inference.protocol.keys import specs_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadFailure
from inference.supervised_threads import SupervisedThread

if TYPE_CHECKING:
    from inference.neuron.replicas.record import ReplicaContext
    from inference.neuron.replicas.replica import Replica, Replicas

log = logging.getLogger(__name__)

RESTART_BACKOFF = Backoff(first_s=0.5, max_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    healthy_after_s: float = 60.0
    """An engine that served this long had recovered: earlier failures no longer count."""
    max_quick_failures: int = 5
    backoff: Backoff = RESTART_BACKOFF

    def delay_s(self, num_quick_failures: int) -> float | None:
        """``None``: give up."""
        if num_quick_failures > self.max_quick_failures:
            return None
        if num_quick_failures <= 1:
            return 0.0
        return self.backoff.wait_s(num_quick_failures - 1)


MAX_CHANCES = 3
"""Failures in a row that chance may explain."""
MORE_MEMORY_BYTES = 512 * 1024**2
MORE_DISK_BYTES = 64 * 1024**2
"""Other programs take and free less than this all the time."""


class Dependency(Enum):
    TIME = auto()
    CHANCE = auto()
    MEMORY = auto()
    DISK = auto()


_DEPENDENCIES = {
    "does_not_fit": {Dependency.MEMORY},
    "out_of_memory": {Dependency.MEMORY},
    "disk_full": {Dependency.DISK},
    "engine_crashed": {Dependency.CHANCE, Dependency.MEMORY},
    "engine_hung": {Dependency.CHANCE, Dependency.MEMORY},
    "engine_error": {Dependency.CHANCE, Dependency.MEMORY},
    "device_fault": {Dependency.CHANCE, Dependency.MEMORY},
}


def dependencies(failure: LoadFailure) -> set[Dependency]:
    """Empty: files and settings alone. A load that reported its need depends on nothing here:
    placement compares the need with free memory."""
    if failure.is_permanent:
        return set()
    if failure.needed_bytes is not None:
        return {Dependency.TIME}
    return _DEPENDENCIES.get(failure.code, {Dependency.TIME})


def waits_for_time(failure: LoadFailure, num_failures: int) -> bool:
    """``num_failures``: in a row, this one included."""
    found = dependencies(failure)
    return Dependency.TIME in found or (Dependency.CHANCE in found and num_failures <= MAX_CHANCES)


def _has_more_memory(load: Load, now: Mapping[str, int]) -> bool:
    """Whether as many devices of that kind have more free than the fullest one had when the load
    began. ``now``: free bytes by device (``cuda:1``)."""
    before = [load.free_before[name] for name in load.devices if name in load.free_before]
    kinds = {name.partition(":")[0] for name in load.devices}
    free = sorted(bytes_ for name, bytes_ in now.items() if name.partition(":")[0] in kinds)
    if not before or len(free) < len(before):
        return False
    return free[-len(before)] >= min(before) + MORE_MEMORY_BYTES


CHECK_S = 2.0
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
        self._replicas = replicas
        self._free_bytes = free_bytes
        self._directory = hub_cache_dir(cache_dir)
        self._ask_hub = ask_hub
        self._clock = clock
        self._found: dict[Load, _Found] = {}
        self._stopping = threading.Event()
        self.start = SupervisedThread(self._check_for_ever, name="failed-loads").start
        self.stop = self._stopping.set

    def check(self) -> None:
        """Blocks while the hub is asked."""
        disk_free, free = free_disk_bytes(self._directory), self._free_bytes()
        before, self._found = self._found, {}
        for replica in self._replicas():
            load, failure = replica.load, replica.unchanged_failure
            if failure is None:
                continue
            cached = weights_identity(load.weights)
            found = self._found[load] = before.get(load) or _Found(disk_free, cached)
            waits_for, enough = dependencies(failure), found.disk_free_bytes + MORE_DISK_BYTES
            has_memory = Dependency.MEMORY in waits_for and _has_more_memory(load, free)
            has_disk = Dependency.DISK in waits_for and disk_free >= enough
            if self._is_mended(replica, failure, found, cached):
                log.info("%s may be loaded again: its files have changed", replica.spec.model)
                replica.drain()
            elif has_memory or has_disk:
                log.info("%s may be loaded again: more is free now", replica.spec.model)
                replica.improve()

    def _is_mended(
        self, replica: Replica, failure: LoadFailure, found: _Found, cached: str | None
    ) -> bool:
        known = replica.load.file_identity
        if known is not None and local_identity(replica.spec) != known:
            return True
        if cached is not None and cached != found.cached_weights:
            return True
        now_s, was_asked = self._clock(), found.asked_s is not None
        if found.asked_s is not None and now_s - found.asked_s < ASK_HUB_S:
            return False
        found.asked_s, first = now_s, found.hub
        identity = self._ask_hub(replica.spec)
        found.hub = first or identity
        if failure.code == "repo_fetch_failed":  # only the hub knows what this host may read
            return was_asked and identity is not None
        return None not in (first, identity) and first != identity

    def _check_for_ever(self) -> None:
        while not self._stopping.wait(CHECK_S):
            self.check()


@dataclass(slots=True)
class _Found:
    disk_free_bytes: int
    cached_weights: str | None
    hub: str | None = None
    asked_s: float | None = None


LETHAL = "the neuron ended while it read this model's tokenizer, and does not load it again"


def read_specs(client: redis.Redis, neuron: str) -> list[LoadSpec]:
    """Raises ``redis.RedisError``."""
    specs = []
    for model, data in client.hgetall(specs_key(neuron)).items():
        try:
            specs.append(msgspec.json.decode(data, type=LoadSpec))
        except msgspec.MsgspecError as error:
            log.error("the stored load spec of %s is not understood: %s", model, error)
    return specs


def queue_specs(pipeline: Pipeline, neuron: str, specs: Sequence[LoadSpec]) -> None:
    key = specs_key(neuron)
    pipeline.delete(key)
    if specs:
        pipeline.hset(key, mapping={spec.model: msgspec.json.encode(spec) for spec in specs})


class PersistedSpecs:
    """Each heartbeat writes them in its transaction, so that a reader of a failed load no longer
    finds its spec."""

    def __init__(
        self, client: redis.Redis, neuron: str, replicas: Replicas, context: ReplicaContext
    ) -> None:
        self._client = client
        self._neuron = neuron
        self._replicas = replicas
        self._context = context
        self._is_restored = False

    def restore(self) -> None:
        """Runs once; the most recently used first, in case not all have room. A model that was
        requested since then keeps its new spec. If the previous instance died while it read one
        model's tokenizer, and did nothing else, that model is not loaded. Raises
        ``redis.RedisError``."""
        if self._is_restored:
            return
        specs = read_specs(self._client, self._neuron)
        marks = self._context.marks.earlier
        for spec in sorted(specs, key=lambda one: (-(one.last_used_unix_s or 0.0), one.model)):
            if not spec.order:
                log.warning("%s is not loaded again: it was saved without an order", spec.model)
                continue
            is_lethal = not blame(marks, [load_mark(spec.model)], 0).may_deliver_again
            replica, _ = self._replicas.add(spec, self._context, recovering=True)
            if replica is None:
                continue
            if is_lethal:
                log.error("%s is not loaded again: it ended the previous instance", spec.model)
                replica.refuse(LoadFailure(code="bad_file", message=LETHAL))
                continue
            log.info("loading %s again: the previous instance had it", spec.model)
            with contextlib.suppress(LoadRefusedError):  # which its thread will report
                self._context.loads.accept(replica.load)
            replica.start()
        self._is_restored = True

    def queue(self, pipeline: Pipeline) -> None:
        """Call after ``restore``."""
        specs = (replica.persisted_spec for replica in self._replicas.all())
        queue_specs(pipeline, self._neuron, [spec for spec in specs if spec is not None])
