"""Clients that hang up while their answer has hours to go: what it held is free at once. A whole
server whose Redis stands still, and one whose gateway is killed: answers pause and lose nothing,
and a key's requests are paid for once. That a cap is never passed is in
``tests/inference/gateway/request/test_reserving.py``, that a hang-up cancels in every phase and
dialect in ``tests/inference/gateway``.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.live.fleets.crowd import Ending, ending_of
from tests.live.scripted.model import ScriptedModel, ScriptedServe
from tests.live.serving import run, wait_until

PROMISED_S = 0.2
"""The time from the hang-up until all is free, on a machine that has nothing else to do."""
NUM_MEASURED = 20


def test_all_is_free_in_200_ms(scripted_server: ScriptedServe, hermes: ScriptedModel) -> None:
    """A quarter of them: others that use the machine delay some. Placement sees none of it then."""
    took_s = []
    for number in range(NUM_MEASURED):
        prompt = f"hold this in decode {number}."
        hermes.answers(prompt, "On and on. ", repeats=True, token_s=1.0)
        asked = [{"role": "user", "content": prompt}]
        with scripted_server.stream(model=hermes.name, messages=asked):
            wait_until(lambda p=prompt: hermes.moments_s("first token", p), "it is in decode")
            began_s = time.monotonic()
        (freed_s,) = wait_until(lambda p=prompt: hermes.moments_s("cancelled", p), "all is free")
        took_s.append(freed_s - began_s)
    assert statistics.quantiles(took_s, n=4)[0] <= PROMISED_S, took_s
    wait_until(lambda: is_idle(scripted_server, hermes), "the fleet knows that it is idle")


def is_idle(serve: ScriptedServe, model: ScriptedModel) -> bool:
    """While Redis stands still the replica's heartbeat may lapse."""
    replica = serve.replica(model.name)
    fields = ("in_flight", "queue_depth", "kv_blocks_used")
    return replica is not None and not any(replica[field] for field in fields)


STALL_S = 2.5
TEXT = "".join(f"{number} " for number in range(80))
"""Some 230 tokens: an answer takes long enough for something to happen meanwhile."""


def test_a_stall_pauses_answers_and_submits_and_loses_nothing(
    scripted_server: ScriptedServe, hermes: ScriptedModel
) -> None:
    """Redis' process is stopped under four open answers, and two requests on their way. What ends
    where it stands still for too long is in ``tests/inference/gateway/redis/test_outages.py``."""
    serve, question = scripted_server, "count for me"
    wait_until(serve.is_healthy, "nothing is wrong beforehand")
    hermes.answers(question, TEXT, token_s=0.04)
    with ThreadPoolExecutor(6) as pool:

        def ask(stream: bool) -> Future[Ending]:
            return pool.submit(ending_of, serve.url, hermes.name, question, TEXT, stream=stream)

        asked = [ask(stream) for stream in (True, False, True, False)]
        wait_until(lambda: len(hermes.moments_s("first token", question)) == 4, "all are answered")
        asked += [ask(stream) for stream in (True, False)]
        redis = serve.find("redis")
        redis.suspend()
        try:
            time.sleep(STALL_S)
        finally:
            redis.resume()
    assert [(one.result().how, one.result().num_endings) for one in asked] == [("whole", 1)] * 6
    assert len(hermes.received(question)) == 6, "each ran once"
    wait_until(lambda: is_idle(serve, hermes), "nothing is left of them")
    wait_until(serve.is_healthy, "nothing is wrong afterwards")


WORDS = "".join(f"{number} " for number in range(400))
MAKE_KEY = """
import sys
from django.core.management import call_command
call_command("accounts", "create", "lab", stdout=sys.stderr)
call_command("keys", "create", "lab", "--cap-tokens", "100000")
"""


def test_a_dead_gateways_bill(scripted_server: ScriptedServe, hermes: ScriptedModel) -> None:
    key = run(scripted_server, MAKE_KEY).strip()
    headers = {"authorization": f"Bearer {key}"}

    def asked(path: str) -> dict[str, Any]:
        found = httpx.get(f"{scripted_server.url}{path}", headers=headers, timeout=30.0)
        body: dict[str, Any] = found.raise_for_status().json()
        return body

    def budget() -> dict[str, Any]:
        (found,) = asked("/api/me")["budgets"]
        return dict(found)

    hermes.answers("count slowly", WORDS, token_s=0.02)
    question = [{"role": "user", "content": "count slowly"}]
    with (
        pytest.raises(httpx.HTTPError),
        scripted_server.stream(headers, model="hermes", messages=question) as stream,
    ):
        for _ in range(5):
            stream.next_text()
        scripted_server.kill("gateway")
        list(stream)
    wait_until(scripted_server.is_healthy, "a new gateway")
    wait_until(lambda: asked("/api/usage?by=key")["total"]["requests"], "it is settled")
    wait_until(lambda: budget()["reserved"] == 0, "nothing is held")
    total = asked("/api/usage?by=key")["total"]
    assert total["requests"] == 1
    assert total["completion_tokens"] >= 5
    assert budget()["spent"] == total["prompt_tokens"] + total["completion_tokens"]
