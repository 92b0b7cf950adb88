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
from collections.abc import Callable, Iterable, Sequence

import msgspec
import redis

from inference.neuron.accounts import AccountBook, send_due
from inference.neuron.discovery import Discovery
from inference.neuron.engine_process import EngineProcess
from inference.neuron.errors import RequestRefusedError, model_not_loaded, neuron_stopping
from inference.neuron.event_publisher import EventPublisher
from inference.neuron.heartbeat import GatewayWatch, Heart, HeartbeatWriter
from inference.neuron.inbox import Inbox
from inference.neuron.intake import Intake
from inference.neuron.model_text import ModelText
from inference.neuron.name_lease import NameLease
from inference.neuron.promised_memory import without_promised
from inference.neuron.replica import Replica
from inference.neuron.replica_context import ReplicaContext
from inference.neuron.request_table import RequestTable
from inference.neuron.restart_policy import RestartPolicy
from inference.neuron.specs import SpecStore
from inference.neuron.starter import Starter
from inference.protocol.generation import Cancel, InboxFrame, Submit
from inference.protocol.heartbeat import NeuronHeartbeat, ReplicaStatus
from inference.protocol.held import HeldRequests, held_requests
from inference.protocol.load import LoadSpec
from inference.protocol.stalls import DEFAULT_STALL_LIMIT_S, KEPT_AFTER_LIMIT_S
from inference.version import VERSION

log = logging.getLogger(__name__)

FAREWELL_S = 0.5
"""What the last events get to reach Redis when the neuron stops."""
LEAVING_AT_LEAST_S = 1.5
"""Until then gateways have read that it is leaving, and what they sent before is here."""
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
        discovery: Discovery,
        restart_policy: RestartPolicy | None = None,
        silence_limit_s: float | None = None,
        stall_limit_s: float = DEFAULT_STALL_LIMIT_S,
        on_name_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``stall_limit_s``: how long gateways wait for a Redis that does not answer.
        ``on_name_lost``: another neuron has this one's name; called once, by the heartbeat."""
        self.name = name
        self.epoch = uuid.uuid4().hex
        self.lease = NameLease(client, neuron=name, epoch=self.epoch)
        self._started_unix_s = time.time()
        self._discovery = discovery
        self._lock = threading.Lock()
        self._replicas: dict[str, Replica] = {}
        self._is_restored = False
        self._is_stopping = False
        self._is_leaving = False
        self._stopped = threading.Event()
        self._client = client
        self._accounts = AccountBook(name)
        self._table = RequestTable(self._accounts)
        self._publisher = EventPublisher(
            client,
            neuron=name,
            epoch=self.epoch,
            on_lost=self._table.forget,
            keep_s=stall_limit_s + KEPT_AFTER_LIMIT_S,
        )
        self._intake = Intake(
            Starter(table=self._table, publish=self._publisher.publish, take=self._take)
        )
        self._inbox = Inbox(client, neuron=name, handle=self._handle)
        self._specs = SpecStore(client, neuron=name)
        self._heartbeats = HeartbeatWriter(client, lease=self.lease)
        self._gateways = GatewayWatch(client)
        self._heart = Heart(self._beat, on_name_lost)
        self._num_beats = 0
        self._context = ReplicaContext(
            table=self._table,
            publish=self._publisher.publish,
            start_engine=lambda spec: EngineProcess(self._with_promised(spec), engine_command),
            on_change=self._heart.beat_now,
            on_gone=self._forget_replica,
            restart_policy=restart_policy or RestartPolicy(),
            silence_limit_s=silence_limit_s,
        )

    def start(self) -> None:
        """Loads again what the last life had, as soon as Redis answers. Returns at once."""
        self._intake.start()
        self._heart.start()

    def load_model(self, spec: LoadSpec) -> None:
        """Idempotent: the same spec again only moves the replica to the new job. Another spec for
        a loaded model replaces it once the requests on the old one are done."""
        with self._lock:
            if self._is_stopping:
                return
            current = self._replicas.get(spec.model)
            if current is not None and _is_already(current, spec):
                current.adopt_job(spec.job_id)
                replica = None
            else:
                replica = Replica(spec, self._context, predecessor=current)
                self._replicas[spec.model] = replica
        if replica is not None:
            log.info("loading %s from %s", spec.model, spec.source)
            if current is not None:
                current.drain()
            replica.start()
        self._save_specs()
        self._heart.beat_now()

    def unload_model(self, model: str) -> None:
        """Waits, elsewhere, for the requests in flight. An unknown model is unloaded already."""
        with self._lock:
            replica = self._replicas.get(model)
        if replica is None:
            log.info("unload of %s: it is not loaded", model)
            return
        log.info("unloading %s", model)
        replica.drain()
        self._save_specs()

    def drain_inbox(self) -> int:
        """How many frames were taken. Raises ``redis.RedisError``."""
        return self._inbox.drain()

    def heartbeat(self) -> NeuronHeartbeat:
        with self._lock:
            replicas = list(self._replicas.values())
        return NeuronHeartbeat(
            name=self.name,
            epoch=self.epoch,
            version=VERSION,
            started_unix_s=self._started_unix_s,
            time_unix_s=time.time(),
            host=self._discovery.host(),
            devices=without_promised(self._discovery.devices(), _promised_bytes(replicas)),
            replicas=[replica.state() for replica in replicas],
            is_leaving=self._is_leaving,
        )

    def leave(self, limit_s: float, hurry: threading.Event) -> None:
        """Says that it is leaving, refuses what is new and returns when nothing runs any more, or
        at the limit, or when somebody is in a hurry. ``stop`` comes next."""
        with self._lock:
            self._is_leaving = True
        self._heart.beat_now()
        started_s = time.monotonic()
        while not hurry.wait(LEAVING_POLL_S):
            stayed_s = time.monotonic() - started_s
            if stayed_s >= limit_s:
                log.warning("requests are cut off: they did not end in %.0f s", limit_s)
                return
            with contextlib.suppress(redis.RedisError):
                self.drain_inbox()  # nobody rings for a worker that takes no tasks any more
            if stayed_s >= LEAVING_AT_LEAST_S and not self._table.gateway_ids():
                return

    def stop(self) -> None:
        """Takes nothing new, fails what runs, ends every engine, says goodbye. A few seconds;
        a second caller waits for the first."""
        with self._lock:
            is_first, self._is_stopping = not self._is_stopping, True
            replicas = list(self._replicas.values())
        if is_first:
            self._end_everything(replicas)
            self._stopped.set()
        self._stopped.wait()

    def _end_everything(self, replicas: list[Replica]) -> None:
        self._heart.stop(timeout_s=1.0)
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
        try:
            send_due(self._accounts, self._client)
            self._heartbeats.remove()
        except redis.RedisError as error:
            log.warning("the heartbeat could not be removed: %s", error)

    def _handle(self, frame: InboxFrame, num_bytes: int) -> None:
        match frame:
            case Submit():
                self._intake.put(frame, num_bytes)
            case Cancel(request_id=request_id):
                self._publisher.publish(self._table.cancel(request_id))

    def _take(self, model: str) -> tuple[EngineProcess, ModelText]:
        with self._lock:
            replica = self._replicas.get(model)
            is_ending = self._is_stopping or self._is_leaving
        if is_ending:
            raise RequestRefusedError(neuron_stopping())
        if replica is None:
            raise RequestRefusedError(model_not_loaded(model))
        return replica.take_request()

    def _with_promised(self, spec: LoadSpec) -> LoadSpec:
        with self._lock:
            replicas = list(self._replicas.values())
        return msgspec.structs.replace(spec, promised_bytes=_promised_bytes(replicas))

    def _beat(self) -> None:
        with self._lock:
            replicas = list(self._replicas.values())
        for replica in replicas:
            replica.tick()
        try:
            self._speak_to_redis()
        except redis.RedisError:
            self._gateways.interrupted()
            raise

    def _speak_to_redis(self) -> None:
        """Raises ``NameLostError``, ``redis.RedisError``."""
        self.lease.renew()
        if not self._is_restored:
            self._restore()
        # Before it is said which requests are held: one that was in the inbox is among them.
        self.drain_inbox()
        heartbeat = self.heartbeat()
        # First, so that whoever reads of a failed load finds it among the surviving ones no more.
        self._specs.write(self._surviving_specs())
        self._heartbeats.write(heartbeat, self._held_requests())
        self._drop_dead_gateways()
        send_due(self._accounts, self._client)

    def _held_requests(self) -> dict[str, HeldRequests]:
        self._num_beats += 1
        # First: what ends in between is in neither, and has events that are not late yet.
        behind = self._publisher.behind()
        return held_requests(self.epoch, self._num_beats, self._table.ids_by_gateway(), behind)

    def _restore(self) -> None:
        """Loads what the last life had; a model asked for since then keeps its new spec."""
        restored = []
        stored = self._specs.read()
        with self._lock:
            self._is_restored = True
            for spec in stored:
                if spec.model not in self._replicas:
                    replica = Replica(spec, self._context, recovering=True)
                    self._replicas[spec.model] = replica
                    restored.append(replica)
        for replica in restored:
            log.info("loading %s again: the last life of this neuron had it", replica.spec.model)
            replica.start()

    def _save_specs(self) -> None:
        """Before ``_restore`` has read them they are not ours to write."""
        if not self._is_restored:
            return
        try:
            self._specs.write(self._surviving_specs())
        except redis.RedisError as error:
            log.warning("load specs are not saved yet: %s", error)  # the next heartbeat does

    def _surviving_specs(self) -> list[LoadSpec]:
        with self._lock:
            return [replica.spec for replica in self._replicas.values() if replica.should_survive]

    def _drop_dead_gateways(self) -> None:
        """Their open requests are cancelled. What those used, and what others used that ended not
        long ago, is told to whoever settles it."""
        watched = self._table.gateway_ids() | self._accounts.gateway_ids()
        for gateway_id in self._gateways.dead(watched):
            num_dropped = self._table.forget_gateway(gateway_id)
            num_ended = self._accounts.gateway_died(gateway_id, now_unix_s=time.time())
            log.warning(
                "gateway %s is dead: cancelled its %d requests; %d more had ended not long ago",
                gateway_id,
                num_dropped,
                num_ended,
            )
            self._publisher.retire(gateway_id)

    def _forget_replica(self, replica: Replica) -> None:
        with self._lock:
            if self._replicas.get(replica.spec.model) is replica:
                del self._replicas[replica.spec.model]
        self._heart.beat_now()


def _promised_bytes(replicas: Iterable[Replica]) -> int:
    return sum(replica.promised_bytes() for replica in replicas)


def _is_already(replica: Replica, spec: LoadSpec) -> bool:
    """Whether a load of ``spec`` has nothing to do but wait."""
    if replica.status in (ReplicaStatus.FAILED, ReplicaStatus.DRAINING):
        return False
    # What earlier loads showed moves from load to load and changes nothing of what is loaded.
    same = {"job_id": spec.job_id, "earlier_loads": spec.earlier_loads}
    return msgspec.structs.replace(replica.spec, **same) == spec
