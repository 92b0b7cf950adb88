"""A neuron's requests: from the inbox to the events.

    Inbox ─▶ Intake ─▶ Starter ─▶ engine process … replica thread ─▶ EventPublisher
                          └─▶ RequestTable ◀──────────────────────────────┘

Reading the inbox deletes nothing, so a frame whose reader dies or gets no answer is read again; a
handled frame is deleted by its id. A frame may come twice, from here or from its gateway, and is
handled once. A large one takes several entries. Methods that write to Redis raise
``redis.RedisError``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis

from inference.neuron.errors import NEURON_STOPPING, refused
from inference.neuron.heartbeat import GatewayWatch
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.requests.intake import Intake
from inference.neuron.requests.publisher import EventPublisher
from inference.neuron.requests.request_table import RequestTable
from inference.neuron.requests.starter import PreparingMarks, Starter
from inference.neuron.text.model_text import ModelText
from inference.protocol.delivery import (
    PARTS_A_READ,
    FrameAssembler,
    HeldRequests,
    held_requests,
    image_field_names,
)
from inference.protocol.generation import Cancel, InboxFrame, Submit, decode_inbox_frame
from inference.protocol.images import ImageRef
from inference.protocol.keys import KEPT_AFTER_LIMIT_S, images_key, inbox_key
from inference.settings.neuron import LoggedBodies

log = logging.getLogger(__name__)


SEEN_S = 120.0
"""A frame is delivered again only while gateways wait for Redis: 30 s unless set."""
MAX_SEEN = 100_000
"""About 15 MB. At more than 800 requests a second the memory is shorter than ``SEEN_S``."""

Entry = tuple[bytes, dict[bytes, bytes]]


class Inbox:
    """The doorbell and the heartbeat both drain; one at a time, so that order holds."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        neuron: str,
        handle: Callable[[InboxFrame, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``handle`` gets a frame and its size in bytes, and must return at once."""
        self._client = client
        self._key = inbox_key(neuron)
        self._handle = handle
        self._clock = clock
        self._lock = threading.Lock()
        self._first_seen_s: dict[str, float] = {}
        """The oldest first."""
        self._assembler = FrameAssembler()

    def drain(self) -> int:
        """Returns the number of entries. Raises ``redis.RedisError``."""
        num_entries = 0
        with self._lock:
            entries = self._read([])
            while entries:
                num_entries += len(entries)
                for _, fields in entries:
                    self._handle_entry(fields)
                entries = self._read([entry_id for entry_id, _ in entries])
        return num_entries

    def _read(self, handled_ids: list[bytes]) -> list[Entry]:
        pipeline = self._client.pipeline(transaction=False)
        if handled_ids:
            pipeline.xdel(self._key, *handled_ids)
        pipeline.xrange(self._key, count=PARTS_A_READ)
        replies: list[Any] = pipeline.execute()
        entries: list[Entry] = replies[-1]
        return entries

    def _handle_entry(self, fields: dict[bytes, bytes]) -> None:
        try:
            data = self._assembler.add(fields, time.monotonic())
            if data is None:
                return
            frame = decode_inbox_frame(data)
        except ValueError as error:  # msgspec's errors are
            # It cannot be answered: the request id is inside the unreadable frame.
            num_bytes = sum(map(len, fields.values()))
            log.error("an inbox entry of %d bytes is not understood: %s", num_bytes, error)
            return
        # A submit that comes after its own cancel is dropped, too.
        if not self._is_new(frame.request_id, self._clock()) and isinstance(frame, Submit):
            log.info("request %s was delivered twice", frame.request_id)
        else:
            self._handle(frame, len(data))

    def _is_new(self, request_id: str, now_s: float) -> bool:
        seen = self._first_seen_s
        while seen and (len(seen) >= MAX_SEEN or next(iter(seen.values())) <= now_s - SEEN_S):
            del seen[next(iter(seen))]
        is_new = request_id not in seen
        seen.setdefault(request_id, now_s)
        return is_new


READ_AGAIN_S = 0.5
READ_FOR_S = 10.0


class RedisImageReader:
    """Any thread may call."""

    def __init__(self, client: redis.Redis, *, neuron: str) -> None:
        self._client = client
        self._neuron = neuron
        self._stopped = threading.Event()
        self.stop = self._stopped.set

    def read(self, request_id: str, images: Iterable[ImageRef]) -> dict[str, bytes]:
        """Bytes by digest; incomplete images are left out. Raises ``RequestRefusedError`` where
        Redis does not answer."""
        key = images_key(self._neuron, request_id)
        held: dict[str, bytes] = {}
        for digest, size_bytes in {image.digest: image.num_bytes for image in images}.items():
            names = image_field_names(digest, size_bytes)
            pieces: list[bytes | None] = []
            give_up_s = time.monotonic() + READ_FOR_S
            while len(pieces) < len(names):
                some = names[len(pieces) : len(pieces) + PARTS_A_READ]
                try:
                    found: Any = self._client.hmget(key, some)
                    pieces += found
                except redis.RedisError as error:
                    if time.monotonic() >= give_up_s or self._stopped.wait(READ_AGAIN_S):
                        log.warning("request %s: its images cannot be read: %s", request_id, error)
                        message = "Redis does not answer; try again shortly."
                        raise refused("redis_unavailable", message, param=None) from error
            if None not in pieces:
                held[digest] = b"".join(filter(None, pieces))
        return held


FAREWELL_S = 0.5


class Requests:
    def __init__(
        self,
        client: redis.Redis,
        *,
        neuron: str,
        epoch: str,
        take: Callable[[str], tuple[EngineProcess, ModelText]],
        bodies: LoggedBodies,
        stall_limit_s: float,
    ) -> None:
        self._client = client
        self._neuron = neuron
        self._epoch = epoch
        self._num_beats = 0
        self.table = RequestTable()
        self._publisher = EventPublisher(
            client,
            neuron=neuron,
            epoch=epoch,
            on_lost=self.table.forget,
            keep_s=stall_limit_s + KEPT_AFTER_LIMIT_S,
        )
        self.publish = self._publisher.publish
        self._images = RedisImageReader(client, neuron=neuron)
        self.marks = PreparingMarks(client, neuron=neuron, epoch=epoch)
        self.intake = Intake(
            Starter(
                table=self.table,
                publish=self.publish,
                take=take,
                read_images=self._images.read,
                bodies=bodies,
            ),
            self.marks,
        )
        self._inbox = Inbox(client, neuron=neuron, handle=self._handle)
        self._gateways = GatewayWatch(client)
        self.beat_failed = self._gateways.interrupted

    def drain_inbox(self) -> int:
        # The marks show which of the frames a dead instance was preparing.
        self.marks.read_earlier()
        return self._inbox.drain()

    def _handle(self, frame: InboxFrame, num_bytes: int) -> None:
        match frame:
            case Submit():
                self.intake.put(frame, num_bytes)
            case Cancel(request_id=request_id):
                self.publish(self.table.cancel(request_id))

    def held(self) -> dict[str, HeldRequests]:
        self._num_beats += 1
        # Read first: a request that ends in between is in neither, and its events are not late yet.
        behind = self._publisher.behind()
        return held_requests(self._epoch, self._num_beats, self.table.ids_by_gateway(), behind)

    def cancel_of_dead_gateways(self) -> None:
        """Call once per beat. Raises ``redis.RedisError``."""
        watched = self.table.gateway_ids() | self._publisher.gateway_ids()
        for gateway_id in self._gateways.dead(watched):
            num_cancelled = self.table.forget_gateway(gateway_id)
            # A gateway that was stopped has cancelled its own requests, so nothing went wrong.
            level = logging.WARNING if num_cancelled else logging.INFO
            log.log(
                level, "gateway %s is gone: cancelled its %d requests", gateway_id, num_cancelled
            )
            self._publisher.retire(gateway_id)

    def stop(self) -> None:
        """Waits shortly until the last events have reached Redis."""
        self._images.stop()
        self.intake.stop()
        self.publish(self.table.fail_all(NEURON_STOPPING))
        self._publisher.flush(FAREWELL_S)
