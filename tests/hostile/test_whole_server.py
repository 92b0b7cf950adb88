"""A host that was invited attacks with all that its invitation lets it do; an honest client of the
other host notices nothing, and its ledger is what it was told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from benchmarks.gateway.hostile_host import ATTACKS, EVIL, MB, Evil, heartbeat, is_lured
from inference.protocol import keys
from inference.protocol.heartbeat import encode_heartbeat
from inference.protocol.joining import decode_joining
from tests.live import catalogue
from tests.live.conftest import with_caches
from tests.live.serving import MODEL, Serve, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

MAX_GROWTH_BYTES = 50 * MB
NUM_ASKED = 12
TIMEOUT_S = 120.0


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
    """Invited (again), with a replica that the control has ordered. It is cut off once more where
    the control finds what its last life left behind."""
    invited: list[Evil] = []

    def is_in() -> bool:
        try:
            invited.append(_invite_once(serve))
        except redis.AuthenticationError:
            return False
        return True

    wait_until(is_in, "the invitation holds")
    return invited[0]


def _invite_once(serve: Serve) -> Evil:
    """Raises ``redis.AuthenticationError``."""
    line, order = catalogue.run(
        serve,
        "from fleet.live.load_orders import load_orders\n"
        f"print(services.neuron_invite(actor=COMMAND, neuron_name={EVIL!r}))\n"
        f"print(load_orders().order(neuron={EVIL!r}, model='lure'))",
    ).split()
    evil = Evil(redis.Redis.from_url(decode_joining(line).redis_url))
    evil.client.set(keys.heartbeat_key(EVIL), encode_heartbeat(heartbeat(order)), ex=600)
    return evil


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
