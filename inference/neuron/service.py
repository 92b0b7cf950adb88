"""The neuron as one object: what its Celery tasks call, and who owns what in this process.

    task drain_inbox ─▶ Inbox ─▶ Intake ─▶ engine process ─▶ replica thread ─▶ EventPublisher
    task load_model  ─▶ Replica (its own thread)                      ▲
    heartbeat thread ─▶ Redis, and drains the inbox too ──────────────┘ cancels of dead gateways

Every method that a task calls returns at once. Knows no Celery.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import redis

from inference.build import this_build
from inference.neuron.errors import RequestRefusedError, model_not_loaded, neuron_stopping
from inference.neuron.events.publisher import EventPublisher
from inference.neuron.events.usage_reports import UsageReportBook, send_due
from inference.neuron.host.device_sampler import Devices
from inference.neuron.loads.admission import LoadAdmission
from inference.neuron.loads.downloads import Downloads
from inference.neuron.loads.failed_loads import FailedLoads
from inference.neuron.loads.fetcher import Fetcher
from inference.neuron.loads.file_checker import FileChecker, check_nothing
from inference.neuron.loads.load import Load
from inference.neuron.loads.queue import LoadQueue
from inference.neuron.process.drills import Drills
from inference.neuron.process.heartbeat import GatewayWatch, Heart, HeartbeatWriter
from inference.neuron.process.name_lease import NameLease
from inference.neuron.process.persisted_specs import PersistedSpecs
from inference.neuron.process.redis_client import Link
from inference.neuron.process.specs import SpecStore
from inference.neuron.replicas.by_model import Replicas
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.replicas.engine_logs import EngineLogs
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.replica import Replica
from inference.neuron.replicas.restart_policy import RestartPolicy
from inference.neuron.requests.dead_gateways import DeadGateways
from inference.neuron.requests.intake.inbox import Inbox
from inference.neuron.requests.intake.intake import Intake
from inference.neuron.requests.intake.preparing_marks import PreparingMarks
from inference.neuron.requests.intake.starter import Starter
from inference.neuron.requests.prompts.model_text import ModelText
from inference.neuron.requests.prompts.prompt_images import RedisImageReader
from inference.neuron.requests.request_table import RequestTable
from inference.protocol.generation import Cancel, InboxFrame, Submit
from inference.protocol.heartbeat import PROTOCOL, BuildInfo, HostInfo, NeuronHeartbeat
from inference.protocol.held import HeldRequests, held_requests
from inference.protocol.load import LoadSpec
from inference.protocol.stalls import KEPT_AFTER_LIMIT_S
from inference.sandbox.pool import WorkerPool
from inference.settings.accounts import LoggedBodies
from inference.settings.memory_limits import MemoryLimits
from inference.settings.neuron import LOG_BODIES, MEMORY_LIMIT
from inference.settings.storage import REDIS_STALL_S
from inference.supervised_threads import mend_threads, thread_problems
from inference.version import VERSION

log = logging.getLogger(__name__)

FAREWELL_S = 0.5
"""What the last events get to reach Redis when the neuron stops."""
LEAVING_AT_LEAST_S = 1.5
"""How long it stays after it announced that it leaves: by then gateways have read that, and their
earlier requests have arrived."""
LEAVING_POLL_S = 0.05
STOP_GRACE_S = 2.5
"""How long engines get to end in order when the neuron stops; then they are killed."""


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
        allows_drills: bool = False,
        memory_limits: MemoryLimits = MEMORY_LIMIT.default,
        checks_files: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``stall_limit_s``: how long gateways wait for a Redis that does not answer.
        ``load_stall_limit_s``: how long a load or download may make no progress, by ``clock``;
        ``None``: no limit. ``cache_dir``: where downloads go. ``on_name_lost``: another neuron has
        this one's name; called once, by the heartbeat. ``bodies``: whose texts are logged.
        ``allows_drills``: operators may inject faults. ``memory_limits``: what its models may use
        of each device. ``checks_files``: whether a load's files are read as this build's engine
        reads them before models leave for it."""
        self.name = name
        self.epoch = uuid.uuid4().hex
        self.lease = NameLease(client, neuron=name, epoch=self.epoch)
        self._started_unix_s = time.time()
        self._build = BuildInfo(**asdict(this_build()))
        self._discovery = discovery
        self._replicas = Replicas()
        self._is_leaving = False
        self._stuck: list[str] = []
        """Requests that hold a thread of the intake, in words."""
        self._is_ready = True
        self._stopped = threading.Event()
        self._client = client
        self._reports = UsageReportBook()
        self._table = RequestTable(self._reports)
        self._publisher = EventPublisher(
            client,
            neuron=name,
            epoch=self.epoch,
            on_lost=self._table.forget,
            keep_s=stall_limit_s + KEPT_AFTER_LIMIT_S,
        )
        self._images = RedisImageReader(client, neuron=name)
        self._marks = PreparingMarks(client, neuron=name, epoch=self.epoch)
        self._workers = WorkerPool()
        self._intake = Intake(
            Starter(
                table=self._table,
                publish=self._publisher.publish,
                take=self._take,
                read_images=self._images.read,
                bodies=bodies,
            ),
            self._marks,
        )
        self._inbox = Inbox(client, neuron=name, handle=self._handle)
        self._heartbeats = HeartbeatWriter(client, lease=self.lease)
        self._dead_gateways = DeadGateways(
            GatewayWatch(client), self._table, self._reports, self._publisher
        )
        self._heart = Heart(self._beat, on_name_lost)
        self._num_beats = 0
        self._loads = LoadQueue(discovery, memory_limits)
        self._fetcher = Fetcher(
            cache_dir, self._loads.most_free_bytes, stall_limit_s=load_stall_limit_s, clock=clock
        )
        self.downloads = Downloads(
            client, neuron=name, fetcher=self._fetcher, used_paths=self._replicas.weights_in_use
        )
        self.logs = EngineLogs(client, neuron=name)
        link = client.connection_pool
        self.drills = Drills(
            is_allowed=allows_drills,
            replicas=self._replicas,
            link=link if isinstance(link, Link) else None,
        )
        self._engine_command = engine_command
        self._context = ReplicaContext(
            table=self._table,
            publish=self._publisher.publish,
            start_engine=self._start_engine,
            workers=self._workers,
            marks=self._marks,
            loads=self._loads,
            admission=LoadAdmission(
                self._loads,
                fetch=self._fetcher.fetch,
                check_files=FileChecker().check if checks_files else check_nothing,
                find=self._replicas.find,
            ),
            discard=self._discard,
            on_change=self._heart.beat_now,
            on_gone=self._forget,
            restart_policy=restart_policy or RestartPolicy(),
            silence_limit_s=silence_limit_s,
            load_stall_limit_s=load_stall_limit_s,
            clock=clock,
        )
        self._failed_loads = FailedLoads(
            self._replicas.all,
            free_bytes=self._loads.free_bytes,
            cache_dir=self._fetcher.cache_dir,
        )
        self._persisted_specs = PersistedSpecs(
            SpecStore(client, neuron=name), self._replicas, self._context
        )

    def start(self) -> None:
        """Loads again what the last life had, as soon as Redis answers. Returns at once."""
        self._workers.start()
        self._intake.start()
        self._heart.start()
        self.downloads.start()
        self._failed_loads.start()

    def load_model(self, spec: LoadSpec) -> None:
        """Idempotent: the same spec again only moves the replica to the new job, and wakes it.
        Another spec for a loaded model replaces it once the requests on the old one are done."""
        replica, current = self._replicas.add(spec, self._context)
        if replica is not None:
            log.info("loading %s from %s", spec.model, spec.source)
            if current is not None:
                current.drain()
            replica.start()
        elif current is not None:
            current.wake(spec)
        self._persisted_specs.save()
        self._heart.beat_now()

    def unload_model(self, model: str) -> None:
        """Waits, elsewhere, for the requests in flight. An unknown model is unloaded already."""
        replica = self._replicas.find(model)
        if replica is None:
            log.info("unload of %s: it is not loaded", model)
            return
        log.info("unloading %s", model)
        replica.drain()
        self._persisted_specs.save()

    def sleep_model(self, model: str, job_id: str) -> None:
        """Waits, elsewhere, for the requests in flight. What cannot sleep serves on."""
        replica = self._replicas.find(model)
        if replica is None:
            log.info("sleep of %s: it is not loaded", model)
            return
        replica.sleep(job_id)
        self._persisted_specs.save()

    def drop_adapter(self, model: str, adapter: str) -> None:
        """Remove the adapter from ``model``'s engine once no sequence uses it; heartbeats list the
        present ones. Does nothing if the model is not loaded."""
        replica = self._replicas.find(model)
        if replica is not None:
            log.info("adapter %s leaves %s", adapter, model)
            replica.drop_adapter(adapter)

    def drain_inbox(self) -> int:
        """How many frames were taken. Raises ``redis.RedisError``."""
        self._heart.mend()  # the one thread that no heartbeat can mend
        # The marks show which of the frames a dead instance was preparing.
        self._marks.read_earlier()
        return self._inbox.drain()

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
            replicas=[replica.state() for replica in self._replicas.all()],
            is_leaving=self._is_leaving,
            thread_problems=[*thread_problems(), *self._stuck],
            allows_drills=self.drills.is_allowed,
            is_ready=self._is_ready,
        )

    def _host(self) -> HostInfo:
        host = self._discovery.host()
        problems = [*host.problems, *self._loads.limit_problems()]
        return msgspec.structs.replace(host, problems=problems)

    def leave(self, limit_s: float, force: threading.Event) -> None:
        """Announce that it leaves, refuse new requests, and return when none runs any more, at the
        limit, or when ``force`` is set. ``stop`` comes next."""
        self._is_leaving = True
        self._heart.beat_now()
        started_s = time.monotonic()
        while not force.wait(LEAVING_POLL_S):
            stayed_s = time.monotonic() - started_s
            if stayed_s >= limit_s:
                log.warning("requests are cut off: they did not end in %.0f s", limit_s)
                return
            with contextlib.suppress(redis.RedisError):
                self.drain_inbox()  # a worker that consumes no more tasks is not notified
            if stayed_s >= LEAVING_AT_LEAST_S and not self._table.gateway_ids():
                return

    def stop(self) -> None:
        """Refuse new requests, fail running ones, end every engine, withdraw the heartbeat. Takes a
        few seconds; a second caller waits for the first."""
        if self._replicas.close():
            self._end_everything(self._replicas.all())
            self._stopped.set()
        self._stopped.wait()

    def _end_everything(self, replicas: list[Replica]) -> None:
        self.downloads.stop()
        self._failed_loads.stop()
        self._heart.stop(timeout_s=1.0)
        self._images.stop()
        self._intake.stop()
        self._publisher.publish(self._table.fail_all(neuron_stopping()))
        self._publisher.flush(FAREWELL_S)
        for replica in replicas:
            replica.stop()
        deadline_s = time.monotonic() + STOP_GRACE_S
        for replica in replicas:
            if not replica.wait_gone(max(0.0, deadline_s - time.monotonic())):
                replica.kill()
                replica.wait_gone(1.0)
        self._workers.close()
        try:
            send_due(self._reports, self._client, neuron=self.name)
            self._heartbeats.remove()
            self._marks.close()
        except redis.RedisError as error:
            log.warning("the heartbeat could not be removed: %s", error)

    def _handle(self, frame: InboxFrame, num_bytes: int) -> None:
        match frame:
            case Submit():
                self._intake.put(frame, num_bytes)
            case Cancel(request_id=request_id):
                self._publisher.publish(self._table.cancel(request_id))

    def _take(self, model: str) -> tuple[EngineProcess, ModelText]:
        replica = self._replicas.find(model)
        if self._replicas.is_closed or self._is_leaving:
            raise RequestRefusedError(neuron_stopping())
        if replica is None:
            raise RequestRefusedError(model_not_loaded(model))
        return replica.take_request()

    def _start_engine(self, spec: LoadSpec) -> EngineProcess:
        """Raises ``OSError``."""
        self.drills.check_start(spec.model)
        return EngineProcess(spec, self._engine_command, on_line=self.logs.writer(spec.model))

    def _discard(self, load: Load) -> None:
        self._fetcher.remove(load.new_files, self._replicas.weights_of_others(load))
        load.new_files = {}

    def _mend_threads(self) -> None:
        """Replaces threads that are gone or stuck, and notes what could not be replaced."""
        gone = mend_threads()
        self._stuck = self._intake.relieve_stuck()
        was_ready, self._is_ready = self._is_ready, not gone and self._intake.is_ready
        if was_ready and not self._is_ready:
            log.critical("this neuron takes no requests: %s", "; ".join([*gone, *self._stuck]))

    def _beat(self) -> None:
        self._mend_threads()
        for replica in self._replicas.all():
            replica.tick()
        try:
            self._speak_to_redis()
        except redis.RedisError:
            self._dead_gateways.interrupted()
            raise

    def _speak_to_redis(self) -> None:
        """Raises ``NameLostError``, ``redis.RedisError``."""
        self.lease.renew()
        self._marks.keep(time.time() - self._started_unix_s)
        self._marks.read_earlier()
        self._persisted_specs.restore()
        # Before the held requests are published: those that were in the inbox are among them.
        self.drain_inbox()
        heartbeat = self.heartbeat()
        # First, so that a reader of a failed load no longer finds its persisted spec.
        self._persisted_specs.write()
        self._heartbeats.write(heartbeat, self._held_requests())
        self._dead_gateways.drop()
        send_due(self._reports, self._client, neuron=self.name)

    def _held_requests(self) -> dict[str, HeldRequests]:
        self._num_beats += 1
        # First: what ends in between is in neither, and has events that are not late yet.
        behind = self._publisher.behind()
        return held_requests(self.epoch, self._num_beats, self._table.ids_by_gateway(), behind)

    def _forget(self, load: Load) -> None:
        self._replicas.forget(load)
        self._heart.beat_now()
