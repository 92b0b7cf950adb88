"""What a host attacks with that was invited: what its Redis user lets it write. What it may not do
is in ``test_commands``, answers that it does not read are in ``test_redis_memory``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis

from inference.protocol import events, keys
from inference.protocol.delivery import MAX_HELD, HeldRequests, encode_held_requests
from inference.protocol.events import encode_event_batch as encode
from inference.protocol.generation import Submit, decode_inbox_frame
from inference.protocol.heartbeat import encode_heartbeat
from inference.redis_link import MAX_VALUE_BYTES
from tests.fleet.conftest import heartbeat, replica

EVIL = "evil"
LURE = "lure"
"""The model that it is asked for, so that a gateway reads its events."""
MB = 1_000_000
VALUE_BYTES = MAX_VALUE_BYTES - 1000
VALUE = b"x" * VALUE_BYTES
"""About the largest that Redis takes."""
NUM_VALUES = 200
"""The number of those values that a flood writes unless it is cut off: 800 MiB."""


@dataclass(slots=True)
class Evil:
    client: redis.Redis
    gateway_id: str = ""
    request_id: str = ""

    def xadd(self, key: str, data: bytes, field: bytes = events.EVENT_BATCH_FIELD) -> None:
        self.client.xadd(key, {field: data})

    @property
    def events(self) -> str:
        return keys.events_key(EVIL, self.gateway_id)


Attack = Callable[[Evil], object]


def attacked_with(order: str) -> bytes:
    """A heartbeat with a ready replica that the control has ordered."""
    now_s = time.time()
    ready = replica(model=LURE, order=order, since_unix_s=now_s, capabilities=["chat"])
    times = {"started_unix_s": now_s, "time_unix_s": now_s}
    return encode_heartbeat(heartbeat(EVIL, replicas=[ready], **times))


def is_lured(evil: Evil) -> bool:
    entries: Any = evil.client.xrange(keys.inbox_key(EVIL))
    for _, fields in entries:
        frame = decode_inbox_frame(fields[keys.INBOX_FRAME_FIELD])
        if isinstance(frame, Submit):
            evil.gateway_id, evil.request_id = frame.gateway_id, frame.request_id
    return bool(evil.request_id)


def batch_of(number: int, *sent: Any, epoch: str = "e") -> bytes:
    return encode(events.EventBatch(epoch=epoch, sequence_number=number, events=[*sent]))


def events_of_others(evil: Evil) -> None:
    usage = events.Usage(prompt_tokens=2**62, completion_tokens=2**62)
    for number in range(200):
        ended = events.Finished(request_id=f"{number}", usage=usage)
        evil.xadd(evil.events, batch_of(number, ended))
    own = events.Finished(request_id=evil.request_id, usage=usage)
    evil.xadd(evil.events, batch_of(10**9, own))


def many_ids(number: int) -> bytes:
    """A list of held requests as msgpack: ids of one letter, which are few bytes."""
    ids = b"\xdd" + number.to_bytes(4, "big") + b"\xa1a" * number
    return b"\x83\xa5epoch\xa1e\xa4beat\x01\xabrequest_ids" + ids


def repeated(times: int, step: Callable[[Evil, int], object]) -> Attack:
    return lambda evil: [step(evil, number) for number in range(times)]


def empty_batch(evil: Evil, number: int) -> None:
    evil.xadd(evil.events, batch_of(number, epoch=f"{number}"))


def largest_id(evil: Evil) -> None:
    with suppress(redis.ResponseError):  # it is there already
        evil.client.xadd(evil.events, {"b": b"x"}, id=f"{2**64 - 1}-{2**64 - 1}")


def end_lure(evil: Evil) -> None:
    failure = events.Failure(code="evil", message="over")
    ended = events.Failed(request_id=evil.request_id, failure=failure)
    evil.xadd(evil.events, batch_of(0, ended, epoch=f"end {time.monotonic_ns()}"))


def valid_batches(evil: Evil, key: str) -> None:
    """Sends batches as large as an honest neuron's, so that no reader refuses them: 200 MB."""
    part = events.Delta(request_id="none", text="x" * (events.MAX_BATCH_BYTES - 4096))
    for number in range(200 * MB // events.MAX_BATCH_BYTES):
        evil.xadd(key, batch_of(number, part))


def held_ids_of_others(evil: Evil) -> None:
    for beat in range(1, 6):
        ids = [f"req_{beat}_{number}" for number in range(MAX_HELD)]
        listed = HeldRequests(epoch="e", beat=beat + time.monotonic_ns(), request_ids=ids)
        for name in ("", evil.gateway_id):
            evil.client.hset(keys.held_key(EVIL), name, encode_held_requests(listed))
        time.sleep(1.0)  # gateways read the list once a second


ATTACKS: dict[str, Attack] = {
    "the largest id": largest_id,
    "its stream trimmed": lambda evil: evil.client.xadd(evil.events, {"b": b"x"}, maxlen=0),
    "large deltas": repeated(NUM_VALUES, lambda evil, _: evil.xadd(evil.events, VALUE)),
    "valid batches": lambda evil: valid_batches(evil, evil.events),
    "batches of no gateway": lambda evil: valid_batches(evil, keys.events_key(EVIL, "none")),
    "large fields": repeated(
        NUM_VALUES, lambda evil, number: evil.client.hset(keys.specs_key(EVIL), f"{number}", VALUE)
    ),
    "empty batches": repeated(20_000, empty_batch),
    "junk batches": repeated(20_000, lambda evil, _: evil.xadd(evil.events, b"\xc1")),
    "others' requests": events_of_others,
    "a large heartbeat": lambda evil: evil.client.set(keys.heartbeat_key(EVIL), b"x" * 300 * MB),
    "many held ids": lambda evil: [
        evil.client.hset(keys.held_key(EVIL), name, many_ids(300_000))
        for name in ("", evil.gateway_id)
    ],
    "held ids of others": held_ids_of_others,
}
