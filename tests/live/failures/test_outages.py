"""A whole server whose Redis stands still: answers pause and lose nothing. Hang-ups, and what the
requests of a dead gateway cost, are in ``tests/inference/gateway``."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from tests.live.fleets.crowd import Ending, ending_of
from tests.live.scripted.model import ScriptedModel, ScriptedServe
from tests.live.serving import wait_until


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
