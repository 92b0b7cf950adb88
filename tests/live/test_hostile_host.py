"""A host that was invited attacks with all that its invitation lets it do; an honest client of the
other host notices nothing, and its ledger is what it was told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from inference.protocol import keys
from inference.protocol.events import EVENT_BATCH_FIELD, EventBatch, Finished, Usage
from inference.protocol.events import encode_event_batch as encode
from inference.protocol.heartbeat import (
    PROTOCOL,
    DeviceInfo,
    HostInfo,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
    encode_heartbeat,
)
from inference.protocol.joining import decode_joining
from inference.protocol.usage_reports import UsageReport, encode_usage_report
from tests.live import catalogue
from tests.live.conftest import with_caches
from tests.live.serving import MODEL, Serve, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

EVIL = "evil"
MB = 1_000_000
MAX_GROWTH_BYTES = 50 * MB
NUM_ASKED = 12
TIMEOUT_S = 120.0


@dataclass(slots=True)
class Evil:
    """The invited host: its Redis client, and the model that it is asked for."""

    client: redis.Redis
    gateway_id: str = ""
    request_id: str = ""

    def xadd(self, key: str, data: bytes, field: bytes = EVENT_BATCH_FIELD) -> None:
        self.client.xadd(key, {field: data})

    @property
    def events(self) -> str:
        return keys.events_key(EVIL, self.gateway_id)


@pytest.fixture(scope="module")
def serve(
    tmp_path_factory: pytest.TempPathFactory, model_cache_dir: Path, native_cache_dir: Path
) -> Iterator[Serve]:
    data_dir = with_caches(
        tmp_path_factory.mktemp("hostile") / "var", model_cache_dir, native_cache_dir
    )
    serve = Serve(data_dir, "--share", f"127.0.0.1:{free_port()}")
    try:
        serve.wait_ready()
        catalogue.create_model(serve, name="lure", source="path:/nowhere", min_replicas=0)
        yield serve
    finally:
        serve.end()


def invite(serve: Serve) -> Evil:
    """Invited (again), with a replica that the control has ordered."""
    line, order = catalogue.run(
        serve,
        "from fleet.load_orders import load_orders\n"
        f"print(services.neuron_invite(actor=COMMAND, neuron_name={EVIL!r}))\n"
        f"print(load_orders().order(neuron={EVIL!r}, model='lure'))",
    ).split()
    evil = Evil(redis.Redis.from_url(decode_joining(line).redis_url))
    evil.client.set(keys.heartbeat_key(EVIL), encode_heartbeat(heartbeat(order)), ex=600)
    return evil


def heartbeat(order: str) -> NeuronHeartbeat:
    now_s = time.time()
    sizes = {"total_memory_bytes": 8 << 30, "free_memory_bytes": 1 << 30}
    replica = ReplicaState(
        model="lure",
        job_id="",
        order=order,
        status=ReplicaStatus.READY,
        since_unix_s=now_s,
        capabilities=["chat", "completions"],
    )
    return NeuronHeartbeat(
        name=EVIL,
        epoch="e",
        version="0",
        protocol=PROTOCOL,
        started_unix_s=now_s,
        time_unix_s=now_s,
        host=HostInfo(hostname="\x1b[2Jevil", os="linux", num_cores=1, **sizes),
        devices=[DeviceInfo(index=0, kind="cpu", name="CPU", **sizes)],
        replicas=[replica],
    )


def is_lured(evil: Evil) -> bool:
    """A gateway has sent it a request, so that it reads its events."""
    from inference.protocol.generation import Submit, decode_inbox_frame

    for _, fields in evil.client.xrange(keys.inbox_key(EVIL)):
        frame = decode_inbox_frame(fields[keys.INBOX_FRAME_FIELD])
        if isinstance(frame, Submit):
            evil.gateway_id, evil.request_id = frame.gateway_id, frame.request_id
    return bool(evil.request_id)


def events_of_others(evil: Evil) -> None:
    usage = Usage(prompt_tokens=2**62, completion_tokens=2**62)
    for number in range(200):
        ended = Finished(request_id=f"{number}", usage=usage)
        batch = EventBatch(epoch="e", sequence_number=number, events=[ended])
        evil.xadd(evil.events, encode(batch))
    own = Finished(request_id=evil.request_id, usage=usage)
    evil.xadd(evil.events, encode(EventBatch(epoch="e", sequence_number=10**9, events=[own])))


def junk_reports(evil: Evil) -> None:
    usage = Usage(prompt_tokens=2**63 - 1, completion_tokens=2**63 - 1)
    report = UsageReport(
        receipt=b"x" * 64, usage=usage, outcome="finished", started_unix_s=1.0, ended_unix_s=2.0
    )
    for _ in range(500):
        evil.xadd(keys.usage_key(EVIL), encode_usage_report(report), b"r")


def many_ids(number: int) -> bytes:
    ids = b"\xdd" + number.to_bytes(4, "big") + b"\xa1a" * number
    return b"\x83\xa5epoch\xa1e\xa4beat\x01\xabrequest_ids" + ids


def refused(*command: object) -> Callable[[Evil], None]:
    def attack(evil: Evil) -> None:
        with pytest.raises(redis.ResponseError):
            evil.client.execute_command(*command)

    return attack


ATTACKS: dict[str, Callable[[Evil], None]] = {
    "an endless script": refused("EVAL", "while true do end", "0"),
    "the largest id": lambda evil: evil.client.xadd(
        evil.events, {b"b": b"x"}, id=f"{2**64 - 1}-{2**64 - 1}"
    ),
    "its stream trimmed": lambda evil: evil.client.xadd(evil.events, {b"b": b"x"}, maxlen=0),
    "large deltas": lambda evil: [evil.xadd(evil.events, b"x" * 10 * MB) for _ in range(20)],
    "empty batches": lambda evil: [
        evil.xadd(evil.events, encode(EventBatch(epoch=f"{n}", sequence_number=n, events=[])))
        for n in range(20_000)
    ],
    "junk batches": lambda evil: [evil.xadd(evil.events, b"\xc1") for _ in range(20_000)],
    "others' requests": events_of_others,
    "a large heartbeat": lambda evil: evil.client.set(keys.heartbeat_key(EVIL), b"x" * 300 * MB),
    "many held ids": lambda evil: [
        evil.client.hset(keys.held_key(EVIL), name, many_ids(300_000))
        for name in ("", evil.gateway_id)
    ],
    "forged reports": junk_reports,
}


@dataclass(slots=True)
class Honest:
    """What the honest client was answered."""

    statuses: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    slowest_s: float = 0.0

    def ask(self, url: str) -> None:
        began_s = time.monotonic()
        answer = httpx.post(
            f"{url}/v1/chat/completions",
            json={
                "model": MODEL,
                "max_tokens": 16,
                "temperature": 0,
                "messages": [{"role": "user", "content": "Say hello."}],
            },
            timeout=TIMEOUT_S,
        )
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        self.statuses.append(answer.status_code)
        if answer.status_code == 200:
            usage = answer.json()["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]


def spent(serve: Serve) -> list[int]:
    """Prompt and completion tokens of the default model, as the ledger has them."""
    told = catalogue.run(
        serve,
        "from metering.models import LedgerEntry\n"
        f"rows = LedgerEntry.objects.filter(model={MODEL!r})\n"
        "print([sum(r.prompt_tokens for r in rows), sum(r.completion_tokens for r in rows)])",
    )
    numbers: list[int] = json.loads(told)
    return numbers


def memory_bytes(serve: Serve) -> dict[str, int]:
    found = {name: serve.find(name).memory_info().rss for name in ("gateway", "control")}
    redis_server = next(
        process
        for process in psutil.Process(serve.process.pid).children(recursive=True)
        if "redis" in process.name()
    )
    return found | {"redis": redis_server.memory_info().rss}


def test_every_attack_is_the_attackers_alone(serve: Serve) -> None:
    honest, before = Honest(), spent(serve)
    honest.ask(serve.url)
    memory_before = memory_bytes(serve)
    with ThreadPoolExecutor(4) as pool:
        for name, attack in ATTACKS.items():
            evil = invite(serve)
            lured = pool.submit(ask_the_lure, serve.url)
            wait_until(lambda evil=evil: is_lured(evil), "a request for the lure")
            evil.client.delete(evil.events)
            wait_until(lambda evil=evil: evil.client.exists(evil.events), "its stream is made anew")
            asked: list[Future[None]] = []
            for _ in range(NUM_ASKED):
                asked.append(pool.submit(honest.ask, serve.url))
            with suppress(redis.ConnectionError, redis.AuthenticationError):  # cut off meanwhile
                attack(evil)
            for one in asked:
                one.result(TIMEOUT_S)
            assert set(honest.statuses) == {200}, name
            lured.result(TIMEOUT_S)
            evil.client.close()
    wait_until(lambda: settled(serve, honest, before), "the ledger has what was told")
    wait_until(lambda: has_shrunk(serve, memory_before), "what was written is gone")
    print(f"slowest honest answer: {honest.slowest_s:.2f} s; memory: {memory_bytes(serve)}")


def ask_the_lure(url: str) -> None:
    """Whatever becomes of it."""
    with suppress(httpx.TransportError):
        httpx.post(
            f"{url}/v1/chat/completions",
            json={"model": "lure", "messages": [{"role": "user", "content": "Hi"}]},
            timeout=20.0,
        )


def settled(serve: Serve, honest: Honest, before: list[int]) -> bool:
    prompt_tokens, completion_tokens = spent(serve)
    return (prompt_tokens - before[0], completion_tokens - before[1]) == (
        honest.prompt_tokens,
        honest.completion_tokens,
    )


def has_shrunk(serve: Serve, before: dict[str, int]) -> bool:
    now = memory_bytes(serve)
    return all(now[name] - before[name] <= MAX_GROWTH_BYTES for name in before)
