"""A host that was invited attacks with all that its invitation lets it do; an honest client of the
other host is answered as ever, gateway, control and Redis stay small, and the ledger has what the
client was answered.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from benchmarks.ports import free_port
from inference.protocol import keys
from inference.protocol.joining import decode_joining
from tests.hostile import hostile_host
from tests.hostile.conftest import MAX_GROWTH_BYTES
from tests.live.conftest import with_caches
from tests.live.serving import MODEL, Serve, create_model, run, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

NUM_ASKED = 6
TIMEOUT_S = 120.0
MAX_REDIS_GROWTH_BYTES = hostile_host.NUM_VALUES * hostile_host.VALUE_BYTES * 3 // 4
"""A flood that nobody cuts off writes all. How soon the control sees it depends on the load of the
machine: a sixth is usual."""
SETTLED_BYTES = 10_000_000
"""What Redis may hold of one attack when the next one begins, whose growth is its own then."""
SAMPLE_INTERVAL_S = 0.02


@pytest.fixture(scope="module")
def serve(
    tmp_path_factory: pytest.TempPathFactory, model_cache_dir: Path, native_cache_dir: Path
) -> Iterator[Serve]:
    data_dir = with_caches(
        tmp_path_factory.mktemp("hostile") / "var", model_cache_dir, native_cache_dir
    )
    with Serve(data_dir, "--share", f"127.0.0.1:{free_port()}") as serve:
        create_model(serve, name="lure", source="path:/nowhere", min_replicas=0)
        yield serve


def invite(serve: Serve) -> hostile_host.Evil:
    """Invited (again), with a replica that the control has ordered. It is cut off once more where
    the control finds what its last life left behind."""
    invited: list[hostile_host.Evil] = []

    def is_in() -> bool:
        with suppress(redis.AuthenticationError):
            invited.append(_invite_once(serve))
        return bool(invited)

    wait_until(is_in, "the invitation holds")
    return invited[0]


def _invite_once(serve: Serve) -> hostile_host.Evil:
    line, order = run(
        serve,
        "from fleet.live.reports import load_orders\n"
        f"print(services.neuron_invite(actor=COMMAND, neuron_name={hostile_host.EVIL!r}))\n"
        f"print(load_orders().order(neuron={hostile_host.EVIL!r}, model='lure'))",
    ).split()
    evil = hostile_host.Evil(redis.Redis.from_url(decode_joining(line).redis_url))
    beat = hostile_host.attacked_with(order)
    evil.client.set(keys.heartbeat_key(hostile_host.EVIL), beat, ex=600)
    return evil


@dataclass(slots=True)
class Honest:
    statuses: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    slowest_s: float = 0.0

    def ask(self, serve: Serve) -> None:
        began_s = time.monotonic()
        answer = serve.chat(max_tokens=16)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        self.statuses.append(answer.status_code)
        if answer.status_code == 200:
            usage = answer.json()["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]


def spent(serve: Serve) -> list[int]:
    output = run(
        serve,
        "from metering.models import LedgerEntry\n"
        f"rows = LedgerEntry.objects.filter(model={MODEL!r})\n"
        "print([sum(r.prompt_tokens for r in rows), sum(r.completion_tokens for r in rows)])",
    )
    numbers: list[int] = json.loads(output)
    return numbers


class MemoryGrowth:
    """What gateway, serve (with its control) and Redis have grown by since."""

    def __init__(self, serve: Serve) -> None:
        self._processes = {name: serve.find(name) for name in ("gateway", "redis")}
        self._processes["serve"] = psutil.Process(serve.process.pid)
        self._before = dict.fromkeys(self._processes, 0)
        self._before = self.now()

    def now(self) -> dict[str, int]:
        return {
            name: one.memory_info().rss - self._before[name]
            for name, one in self._processes.items()
        }

    @contextmanager
    def peaks(self) -> Iterator[dict[str, int]]:
        """The most that each has grown by meanwhile, complete when the ``with`` has ended."""
        most, ended = self.now(), threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_INTERVAL_S):
                most.update({name: max(most[name], num) for name, num in self.now().items()})

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            yield most
        finally:
            ended.set()
            sampler.join()


def redis_of(serve: Serve) -> redis.Redis:
    return redis.Redis.from_url(serve.find("gateway").environ()["REDIS_URL"])


def redis_settled(server: redis.Redis, memory: MemoryGrowth) -> bool:
    """The host's keys are within its bounds, or gone with it. The allocator keeps freed pages for
    some seconds unless it is asked to return them."""
    for key in server.scan_iter(match=f"helexa:neuron:{hostile_host.EVIL}:*"):
        server.unlink(key)
    server.memory_purge()  # type: ignore[no-untyped-call]
    return memory.now()["redis"] <= SETTLED_BYTES


def test_every_attack_is_the_attackers_alone(serve: Serve) -> None:
    honest, before = Honest(), spent(serve)
    for _ in range(NUM_ASKED):
        honest.ask(serve)
    memory, server = MemoryGrowth(serve), redis_of(serve)
    grown: dict[str, dict[str, int]] = {}
    with ThreadPoolExecutor(4) as pool:
        for name in hostile_host.ATTACKS:
            with memory.peaks() as peaks:
                attacked(serve, name, honest, pool)
            assert set(honest.statuses) == {200}, name
            grown[name] = peaks
            wait_until(lambda: redis_settled(server, memory), f"Redis is small after {name}")
    print(f"slowest honest answer: {honest.slowest_s:.2f} s; grown: {json.dumps(grown)}")
    for name, growth in grown.items():
        assert growth["redis"] <= MAX_REDIS_GROWTH_BYTES, (name, growth)
        assert max(growth["gateway"], growth["serve"]) <= MAX_GROWTH_BYTES, (name, growth)
    wanted = [before[0] + honest.prompt_tokens, before[1] + honest.completion_tokens]
    wait_until(lambda: spent(serve) == wanted, "the ledger has what was answered")


def attacked(serve: Serve, name: str, honest: Honest, pool: ThreadPoolExecutor) -> None:
    evil = invite(serve)
    lured = lure(serve.url, evil, pool)
    evil.client.delete(evil.events)
    wait_until(lambda: evil.client.exists(evil.events), "its stream is made anew")
    asked = [pool.submit(honest.ask, serve) for _ in range(NUM_ASKED)]
    with suppress(redis.ConnectionError, redis.AuthenticationError):  # cut off meanwhile
        hostile_host.ATTACKS[name](evil)
    for one in asked:
        one.result(TIMEOUT_S)
    with suppress(redis.RedisError):  # or the gateway has ended it, or does after a while
        hostile_host.end_lure(evil)
    lured.result(TIMEOUT_S)
    evil.client.close()


def lure(url: str, evil: hostile_host.Evil, pool: ThreadPoolExecutor) -> Future[None]:
    """A request that it was sent. Before gateways see it anew, one is refused or goes elsewhere."""
    asked = [pool.submit(ask_the_lure, url)]

    def is_sent() -> bool:
        if asked[-1].done() and not hostile_host.is_lured(evil):
            asked.append(pool.submit(ask_the_lure, url))
        return hostile_host.is_lured(evil)

    wait_until(is_sent, "a request for the lure")
    return asked[-1]


def ask_the_lure(url: str) -> None:
    with suppress(httpx.TransportError):
        httpx.post(
            f"{url}/v1/chat/completions",
            json={"model": "lure", "messages": [{"role": "user", "content": "Hi"}]},
            timeout=20.0,
        )
