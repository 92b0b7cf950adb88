"""Hosts that were invited to the private Redis of a serve, over TLS: three join, one that was given
another certificate is refused, and conversations find their prefixes among the three.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import tokenizers

from benchmarks.ports import free_port
from helexa_site.bootstrap.errors import RedisStartError
from helexa_site.bootstrap.redis_server import find_redis_server
from helexa_site.bootstrap.sharing import ensure_tls
from inference.protocol.joining import decode_joining, encode_joining
from tests.live import catalogue
from tests.live.fleets.certificates import Authority
from tests.live.fleets.programs import Program
from tests.live.operating.second_gateway import second_gateway
from tests.live.scripted.model import FAMILIES, ScriptedModel, make_model
from tests.live.scripted.prompt_cache import PromptCache
from tests.live.scripted.script import Received
from tests.live.scripted.server import ENGINE
from tests.live.scripted.simulated_devices import device_environment
from tests.live.serving import (
    REPOSITORY_DIR,
    WAIT_TIMEOUT_S,
    Serve,
    serve_environment,
    wait_until,
)
from tests.servers.tls_front import tls_front

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

NEURONS = ("ash", "elm", "oak")
EXIT_MISCONFIGURED = 2
GB = 10**9

NUM_CONVERSATIONS, NUM_TURNS, NUM_CLIENTS = 60, 6, 2
CACHE_TOKENS = 60_000
"""The cache of one of three replicas: less than all conversations take, and more than a third of
them."""
ANSWER = "It is sunny in Paris."


@dataclass(frozen=True, slots=True)
class Invited:
    serve: Serve
    lines: dict[str, str]
    """The lines that ``neurons invite`` prints, by neuron."""
    neurons: dict[str, Program]
    run_dir: Path

    def join(self, name: str, line: str) -> Program:
        """A host with one card and scripted engines, which is pasted that line."""
        devices = self.run_dir / f"{name}.json"
        devices.write_text(json.dumps({"devices": [{"kind": "cuda", "memory_bytes": 8 * GB}]}))
        environment = serve_environment() | {
            "HELEXA_DATA_DIR": str(self.run_dir / name),
            "HELEXA_ENGINE_COMMAND": shlex.join([sys.executable, str(ENGINE)]),
            **device_environment(devices),
        }
        manage = str(REPOSITORY_DIR / "manage.py")
        command = [sys.executable, manage, "neuron", "--join", line]
        return Program(name, command, environment, self.run_dir)


@pytest.fixture(scope="module")
def invited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Invited]:
    run_dir = tmp_path_factory.mktemp("invited")
    certified = Authority("helexa's tests").vouch("127.0.0.1", run_dir / "certificate")
    with sharing_serve(run_dir, *certified) as (serve, lines):
        invited = Invited(serve, lines, {}, run_dir)
        try:
            for name, line in lines.items():
                invited.neurons[name] = invited.join(name, line)
            yield invited
        finally:
            for neuron in invited.neurons.values():
                neuron.terminate()
            for neuron in invited.neurons.values():
                neuron.end()


@contextmanager
def sharing_serve(run_dir: Path, chain: Path, key: Path) -> Iterator[tuple[Serve, dict[str, str]]]:
    """Starts a server, with the lines of its invitations. Where the Redis that is installed was
    built without TLS, there is TLS in front of it, and the lines are as they would be."""
    share = ("--share", f"127.0.0.1:{free_port()}")
    tls = ("--share-tls-cert", str(chain), "--share-tls-key", str(key)) if has_tls() else ()
    serve = Serve(run_dir / "var", "--no-model", "--no-neuron", *share, *tls)
    try:
        serve.wait_ready()
        output = catalogue.run(
            serve,
            f"for name in {NEURONS}:\n"
            "    print(services.neuron_invite(actor=COMMAND, neuron_name=name))",
        )
        lines = dict(zip(NEURONS, output.split(), strict=True))
        if tls:
            yield serve, lines
            return
        redis_url = serve.find("gateway").environ()["REDIS_URL"]
        socket_path = Path(redis_url.partition("@")[2].partition("?")[0])
        with tls_front(chain, key, socket_path) as port:
            yield serve, {name: over_tls(line, port, chain) for name, line in lines.items()}
    finally:
        serve.end()


def has_tls() -> bool:
    try:
        ensure_tls(find_redis_server())
    except RedisStartError:
        return False
    return True


def over_tls(line: str, port: int, chain: Path) -> str:
    joining = decode_joining(line)
    user = urlsplit(joining.redis_url).netloc.rpartition("@")[0]
    url = f"rediss://{user}@127.0.0.1:{port}/0"
    return encode_joining(replace(joining, redis_url=url, certificate=chain.read_text()))


def known(serve: Serve) -> set[str]:
    return {neuron["name"] for neuron in serve.health()["neurons"]}


def ready_on(serve: Serve, model: str) -> set[str]:
    return {
        neuron["name"]
        for neuron in serve.health()["neurons"]
        for replica in neuron["replicas"]
        if (replica["model"], replica["status"]) == (model, "ready")
    }


def test_hosts_join_over_tls_and_one_with_another_certificate_does_not(
    invited: Invited,
) -> None:
    wait_until(lambda: known(invited.serve) == set(NEURONS), "all have joined")
    joining = decode_joining(invited.lines["ash"])
    assert joining.redis_url.startswith("rediss://")
    stranger = encode_joining(replace(joining, certificate=Authority("somebody").pem))
    misled = invited.join("misled", stranger)
    try:
        code = misled.process.wait(WAIT_TIMEOUT_S)
    finally:
        misled.end()
    assert code == EXIT_MISCONFIGURED, misled.log_tail()
    assert "a certificate that this host does not trust" in misled.log_tail()
    assert known(invited.serve) <= set(NEURONS)


def test_conversations_find_their_prefixes_among_three_hosts(invited: Invited) -> None:
    """Over two gateways that do not talk to each other, as nearly as with one replica that has all
    the memory."""
    serve = invited.serve
    model = make_model("talker", FAMILIES["hermes"], invited.run_dir / "talker")
    model.answers("", ANSWER, tokens_per_step=64)
    model.caches(CACHE_TOKENS)
    catalogue.create_model(
        serve, name=model.name, source=f"path:{model.folder}", min_replicas=3, max_replicas=3
    )
    wait_until(lambda: ready_on(serve, model.name) == set(NEURONS), "each has a replica")
    with second_gateway(serve) as other_url:
        output = talk((serve.url, other_url), model.name)
    received = model.received("")
    assert len(received) == NUM_CONVERSATIONS * NUM_TURNS
    found = sum(one.num_cached_tokens for one in received)
    assert found == output, "clients are sent what the engines found"
    possible, num_tokens = found_by_one(model, received)
    assert num_tokens == sum(one.num_prompt_tokens for one in received)
    assert possible > num_tokens / 2, "conversations have prefixes to find"
    assert found >= 0.9 * possible
    of_each = Counter(one.process_id for one in received)
    assert len(of_each) == len(NEURONS)
    assert max(of_each.values()) <= 1.3 * len(received) / len(NEURONS), of_each


def talk(gateway_urls: Sequence[str], model: str) -> int:
    """Runs all conversations turn by turn, some at once, and returns the prompt tokens that the
    answers report as cached."""
    draw = random.Random(2)
    histories: list[list[dict[str, str]]] = [[] for _ in range(NUM_CONVERSATIONS)]

    def turn(number: int, text: str, gateway_url: str) -> int:
        histories[number].append({"role": "user", "content": text})
        body = {"model": model, "messages": histories[number], "max_tokens": 100}
        response = client.post(f"{gateway_url}/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        histories[number].append(answer["choices"][0]["message"])
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    with (
        httpx.Client(timeout=WAIT_TIMEOUT_S, verify=False) as client,
        ThreadPoolExecutor(NUM_CLIENTS) as clients,
    ):
        num_cached = 0
        for _ in range(NUM_TURNS):
            numbers = draw.sample(range(NUM_CONVERSATIONS), NUM_CONVERSATIONS)
            texts = [f"{number}: {'describe more ' * draw.randint(10, 40)}" for number in numbers]
            urls = [draw.choice(gateway_urls) for _ in numbers]
            num_cached += sum(clients.map(turn, numbers, texts, urls))
    return num_cached


def found_by_one(model: ScriptedModel, received: Sequence[Received]) -> tuple[int, int]:
    """What one cache of all the memory would have found of the same prompts, and their tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    cache = PromptCache(len(NEURONS) * CACHE_TOKENS)
    prompts = [tokenizer.encode(one.prompt, add_special_tokens=False).ids for one in received]
    return sum(cache.read(prompt) for prompt in prompts), sum(map(len, prompts))
