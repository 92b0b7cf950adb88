"""The neuron as one object: what its Celery tasks call, and who owns what in this process.

    task drain_inbox ─▶ Requests ─▶ engine process ─▶ replica thread ─▶ events
    task load_model  ─▶ Replica (its own thread)                          ▲
    heartbeat thread ─▶ Redis, and drains the inbox too ──────────────────┘ cancels of dead gateways

Every method that a task calls returns at once. Knows no Celery.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import redis
from redis.client import Pipeline

from inference.neuron.device_sampler import Devices
from inference.neuron.errors import NEURON_STOPPING, RequestRefusedError, of_model
from inference.neuron.heartbeat import Heart, queue_heartbeat
from inference.neuron.loads.admission import LoadAdmission
from inference.neuron.loads.downloads import Downloads
from inference.neuron.loads.files import Fetcher, FileChecker
from inference.neuron.loads.load import Load
from inference.neuron.loads.queue import LoadQueue
from inference.neuron.name_lease import NameLease
from inference.neuron.replicas.engine_process import EngineLogs, EngineProcess, EngineStarts
from inference.neuron.replicas.held_stages import HeldStages, StageHolder
from inference.neuron.replicas.record import ReplicaContext
from inference.neuron.replicas.replica import Replica, Replicas
from inference.neuron.replicas.retries import FailedLoads, PersistedSpecs, RestartPolicy
from inference.neuron.requests.requests import Requests
from inference.neuron.text.model_text import ModelText
from inference.protocol.heartbeat import (
    PROTOCOL,
    HostInfo,
    NeuronHeartbeat,
    ReplicaStatus,
)
from inference.protocol.keys import NEURONS, heartbeat_key, held_key
from inference.protocol.load import LoadSpec
from inference.sandbox.pool import WorkerPool
from inference.settings.neuron import LOG_BODIES, MEMORY_LIMIT, LoggedBodies, MemoryLimits
from inference.settings.storage import REDIS_STALL_S
from inference.supervised_threads import thread_problems
from inference.version import VERSION, this_build

log = logging.getLogger(__name__)

LEAVING_AT_LEAST_S = 1.5
"""By then gateways have read the announcement and their earlier requests have arrived."""
LEAVING_POLL_S = 0.05
STOP_GRACE_S = 2.5


class NeuronService:
    def __init__(
        self,
        *,
        name: str,
        client: redis.Redis,
        engine_command: Sequence[str],
        discovery: Devices,
        restart_policy: RestartPolicy | None = None,
        silence_limit_s: float | None = None,
        load_stall_limit_s: float | None = None,
        stall_limit_s: float = REDIS_STALL_S.default,
        cache_dir: Path = Path("var/models"),
        on_name_lost: Callable[[], None] = lambda: None,
        bodies: LoggedBodies = LOG_BODIES.default,
        memory_limits: MemoryLimits = MEMORY_LIMIT.default,
        stage_host: str = "",
        checks_files: bool = True,
        workers: WorkerPool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``stall_limit_s``: how long gateways wait for a Redis that does not answer.
        ``load_stall_limit_s``: without progress, by ``clock``; ``None``: no limit. ``stage_host``:
        where other neurons' engines reach stages held here; empty: none are held. ``workers`` are
        started and closed with it."""
        self.name = name
        self._client = client
        self._may_publish_name = True
        self.epoch = uuid.uuid4().hex
        self.lease = NameLease(client, neuron=name, epoch=self.epoch)
        self._started_unix_s = time.time()
        self._build = this_build()
        self._discovery = discovery
        self._replicas = Replicas()
        self._stage_host = stage_host
        self._is_leaving = False
        self._stuck: list[str] = []
        self._is_ready = True
        self._stopped = threading.Event()
        self._requests = Requests(
            client,
            neuron=name,
            epoch=self.epoch,
            take=self._take,
            bodies=bodies,
            stall_limit_s=stall_limit_s,
        )
        self._workers = workers or WorkerPool()
        self._heart = Heart(self._beat, on_name_lost)
        self._loads = LoadQueue(discovery, memory_limits)
        self._fetcher = Fetcher(
            cache_dir, self._loads.most_free_bytes, stall_limit_s=load_stall_limit_s, clock=clock
        )
        self.downloads = Downloads(
            client, neuron=name, fetcher=self._fetcher, used_paths=self._weights_in_use
        )
        self.logs = EngineLogs(client, neuron=name)
        self.engine_starts = EngineStarts(engine_command, self.logs.writer)
        checker = FileChecker(is_enabled=checks_files)
        self._context = ReplicaContext(
            table=self._requests.table,
            publish=self._requests.publish,
            start_engine=self.engine_starts.start,
            workers=self._workers,
            marks=self._requests.marks,
            loads=self._loads,
            admission=LoadAdmission(
                self._loads,
                fetch=self._fetcher.fetch,
                check_files=checker.check,
                find=self._replicas.find,
            ),
            checker=checker,
            discard=self._discard,
            on_change=self._heart.beat_now,
            on_gone=self._forget,
            restart_policy=restart_policy or RestartPolicy(),
            silence_limit_s=silence_limit_s,
            load_stall_limit_s=load_stall_limit_s,
            clock=clock,
        )
        self._stages = HeldStages(self._context)
        self.release_stages = self._stages.release
        self._failed_loads = FailedLoads(
            self._replicas.all,
            free_bytes=self._loads.free_bytes,
            cache_dir=self._fetcher.cache_dir,
        )
        self._persisted_specs = PersistedSpecs(client, name, self._replicas, self._context)

    def start(self) -> None:
        """Returns at once; models are restored once Redis answers."""
        self._requests.intake.start()
        self._heart.start()
        self.downloads.start()
        self._failed_loads.start()

    def load_model(self, spec: LoadSpec) -> None:
        """Idempotent: the same spec again only moves the replica to the new job, and wakes it.
        Another spec replaces it once its requests are done. With ``stage_of``, one stage is held
        for another neuron's engine."""
        if spec.stage_of is not None:
            self._stages.hold(spec)
            self._heart.beat_now()
            return
        replica, current = self._replicas.add(spec, self._context)
        if replica is not None:
            log.info("loading %s from %s", spec.model, spec.source)
            if current is not None:
                current.drain()
            replica.start()
        elif current is not None:
            current.wake(spec)
        self._heart.beat_now()

    def unload_model(self, model: str, at_once: bool = False) -> None:
        """Returns at once; running requests finish first unless ``at_once``."""
        replica = self._replicas.find(model)
        if replica is None:
            log.info("unload of %s: it is not loaded", model)
            return
        log.info("unloading %s%s", model, " at once" if at_once else "")
        replica.drain(at_once=at_once)
        self._heart.beat_now()

    def sleep_model(self, model: str, job_id: str) -> None:
        """Returns at once; running requests finish first."""
        replica = self._replicas.find(model)
        if replica is None:
            log.info("sleep of %s: it is not loaded", model)
            return
        replica.sleep(job_id)

    def drop_adapter(self, model: str, adapter: str) -> None:
        """The engine frees it once no sequence uses it."""
        replica = self._replicas.find(model)
        if replica is not None:
            log.info("adapter %s leaves %s", adapter, model)
            replica.drop_adapter(adapter)

    def drain_inbox(self) -> None:
        try:
            self._requests.drain_inbox()
        except redis.RedisError as error:
            log.warning("the inbox could not be drained: %s", error)  # the next heartbeat does

    def heartbeat(self) -> NeuronHeartbeat:
        return NeuronHeartbeat(
            name=self.name,
            epoch=self.epoch,
            version=VERSION,
            protocol=PROTOCOL,
            build=self._build,
            started_unix_s=self._started_unix_s,
            time_unix_s=time.time(),
            host=self._host(),
            devices=self._loads.devices(),
            replicas=[
                replica.state(self._loads.kept_bytes(replica.load))
                for replica in self._replicas.all()
            ],
            is_leaving=self._is_leaving,
            thread_problems=[*thread_problems(), *self._stuck],
            is_ready=self._is_ready,
            stage_host=self._stage_host,
            stages=[holder.state() for holder in self._stages.all()],
        )

    def _host(self) -> HostInfo:
        host = self._discovery.host()
        problems = [*host.problems, *self._loads.limit_problems()]
        return msgspec.structs.replace(host, problems=problems)

    def leave(self, limit_s: float, force: threading.Event) -> None:
        """Returns when no request runs, at the limit, or when ``force`` is set. ``stop`` comes
        next."""
        self._is_leaving = True
        self._heart.beat_now()
        started_s = time.monotonic()
        while not force.wait(LEAVING_POLL_S):
            stayed_s = time.monotonic() - started_s
            if stayed_s >= limit_s:
                log.warning("requests are cut off: they did not end in %.0f s", limit_s)
                return
            with contextlib.suppress(redis.RedisError):
                self._requests.drain_inbox()  # a worker that consumes no tasks is not notified
            if stayed_s >= LEAVING_AT_LEAST_S and not self._requests.table.gateway_ids():
                return

    def stop(self) -> None:
        """Takes a few seconds; a second caller waits for the first."""
        if self._replicas.close():
            self._end_everything(self._replicas.all())
            self._stopped.set()
        self._stopped.wait()

    def _end_everything(self, replicas: list[Replica]) -> None:
        self.downloads.stop()
        self._failed_loads.stop()
        self._heart.stop(timeout_s=1.0)
        self._requests.stop()
        ending: list[Replica | StageHolder] = [*replicas, *self._stages.close()]
        for one in ending:
            one.stop()
        deadline_s = time.monotonic() + STOP_GRACE_S
        self.engine_starts.close()
        for one in ending:
            if not one.wait_gone(max(0.0, deadline_s - time.monotonic())):
                one.kill()
                one.wait_gone(1.0)
        self._workers.close()
        try:
            # Offline at once, not in a few seconds, and the name is free.
            self.lease.release(heartbeat_key(self.name), held_key(self.name))
            self._requests.marks.close()
        except redis.RedisError as error:
            log.warning("the heartbeat could not be removed: %s", error)

    def _take(self, model: str) -> tuple[EngineProcess, ModelText]:
        replica = self._replicas.find(model)
        if self._replicas.is_closed or self._is_leaving:
            raise RequestRefusedError(NEURON_STOPPING)
        if replica is None:
            raise RequestRefusedError(of_model("model_not_loaded", model))
        return replica.take_request()

    def _discard(self, load: Load) -> None:
        self._fetcher.remove(load.new_files, self._replicas.weights_of_others(load))
        load.new_files = {}

    def _check_intake(self) -> None:
        self._stuck = self._requests.intake.stuck()
        was_ready, self._is_ready = self._is_ready, self._requests.intake.is_ready
        if was_ready and not self._is_ready:
            log.critical("this neuron takes no requests: %s", "; ".join(self._stuck))

    def _beat(self) -> None:
        self._check_intake()
        for replica in self._replicas.all():
            replica.tick()
        self._stages.tick()
        self.engine_starts.tick()
        try:
            self._speak_to_redis()
        except redis.RedisError:
            self._requests.beat_failed()
            raise

    def _speak_to_redis(self) -> None:
        self.lease.confirm()
        self._requests.marks.keep(time.time() - self._started_unix_s)
        self._requests.marks.read_earlier()
        self._persisted_specs.restore()
        # Before the held requests are published, so that those from the inbox are among them.
        self._requests.drain_inbox()
        heartbeat, held = self.heartbeat(), self._requests.held()

        def write(pipe: Pipeline) -> None:
            queue_heartbeat(pipe, heartbeat, held)
            self._persisted_specs.queue(pipe)

        self.lease.write(write)
        if self._may_publish_name:
            try:
                self._client.zadd(NEURONS, {self.name: heartbeat.time_unix_s})
            except redis.exceptions.NoPermissionError:
                # Invited neurons may not, and need not: the desired states have their names.
                self._may_publish_name = False
        self._requests.cancel_of_dead_gateways()

    def _weights_in_use(self) -> dict[str, list[Path]]:
        used: dict[str, list[Path]] = {}
        for replica in self._replicas.all():
            if replica.status is not ReplicaStatus.FAILED:
                used.setdefault(replica.spec.model, []).extend(replica.load.weights)
        for holder in self._stages.all():
            if not holder.is_over:
                used.setdefault(holder.spec.model, []).extend(holder.load.weights)
        return used

    def _forget(self, load: Load) -> None:
        self._replicas.forget(load)
        self._stages.forget(load)
        self._heart.beat_now()
