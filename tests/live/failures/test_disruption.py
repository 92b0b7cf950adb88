"""What goes away comes back: an engine, a neuron, Redis; nothing is left behind meanwhile. Clients
that hang up are in ``test_hang_ups``.

Each test leaves the shared server able to recover; the fixture waits until it has.
"""

from __future__ import annotations

import signal
import threading

import httpx
import pytest
import redis

from helexa_site.bootstrap.redis_server import URL_FILE
from inference.protocol.keys import preparing_key
from tests.live.catalogue import operate
from tests.live.serving import LONG, MODEL, WAIT_TIMEOUT_S, Serve, is_busy, wait_until
from tests.processes import has_ended


@pytest.fixture(scope="module", autouse=True)
def _one_engine(shared_server: Serve) -> None:
    """Whatever other files have had loaded goes: there is one engine to be found here."""

    def others() -> set[str]:
        replicas = [one for host in shared_server.health()["neurons"] for one in host["replicas"]]
        return {one["model"] for one in replicas if one["status"] == "ready"} - {MODEL}

    for name in others():
        operate(shared_server, "POST", f"/api/catalogue/{name}/unload")
    wait_until(lambda: not others(), "the others are unloaded")


def test_a_killed_engine_without_a_stream_is_a_503(helexa: Serve) -> None:
    """Under a stream ``test_one_serve`` kills it."""
    responses: list[httpx.Response] = []
    request = threading.Thread(target=lambda: responses.append(helexa.chat(**LONG)))
    request.start()
    wait_until(lambda: is_busy(helexa), "decoding")
    helexa.kill("engine")
    request.join(WAIT_TIMEOUT_S)
    (response,) = responses
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_crashed")
    assert int(response.headers["retry-after"]) >= 1
    wait_until(helexa.answers, "answers after its engine was killed")
    assert helexa.reported_replica()["num_restarts"] >= 1


def test_a_killed_neuron_fails_the_request_and_leaves_no_engine(helexa: Serve) -> None:
    engine = helexa.find("engine")
    with helexa.stream(**LONG) as stream:
        stream.next_text()
        neuron = helexa.kill("neuron")
        events = list(stream)
    assert len([event for event in events if '"error"' in event]) == 1
    wait_until(lambda: has_ended(engine), "the engine ended with its neuron")
    wait_until(helexa.answers, "answers after its neuron was killed")
    assert helexa.find("neuron").pid != neuron.pid
    helexa.wait_printed("^neuron.*SIGKILL")


def test_what_a_neuron_died_of_is_not_sent_to_the_next_one(helexa: Serve) -> None:
    """A real SIGSEGV, while the neuron prepares one request and nothing else."""
    before = [line for line in helexa.lines if "SIGSEGV" in line]
    responses: list[httpx.Response] = []
    body = {"model": MODEL, "prompt": "so many words of it " * 500_000}
    url = f"{helexa.url}/tokenize"
    request = threading.Thread(
        target=lambda: responses.append(httpx.post(url, json=body, timeout=WAIT_TIMEOUT_S))
    )
    redis_url = (helexa.data_dir / "redis" / URL_FILE).read_text()
    with redis.Redis.from_url(redis_url) as client:
        (name,) = (neuron["name"] for neuron in helexa.reported_neurons())
        neuron = helexa.find("neuron")
        request.start()
        wait_until(lambda: client.hlen(preparing_key(name)), "it is being prepared")
        neuron.send_signal(signal.SIGSEGV)
    request.join(WAIT_TIMEOUT_S)
    (response,) = responses
    assert (response.status_code, response.json()["error"]["code"]) == (500, "request_broke_worker")
    assert response.headers["x-should-retry"] == "false"
    wait_until(helexa.answers, "answers after its neuron died")
    deaths = [line for line in helexa.lines if "SIGSEGV" in line]
    assert len(deaths) == len(before) + 1, "it was delivered once"


def test_a_killed_redis_fails_the_request_once_and_comes_back(helexa: Serve) -> None:
    with helexa.stream(**LONG) as stream:
        stream.next_text()
        killed = helexa.kill("redis")
        events = list(stream)
    assert len([event for event in events if '"error"' in event]) == 1
    helexa.wait_printed("^redis.*SIGKILL")
    wait_until(helexa.answers, "answers after Redis was killed")
    assert helexa.find("redis").pid != killed.pid
