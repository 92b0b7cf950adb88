"""A request that ends its engine or its neuron is not run again; its client gets that error."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from inference.neuron.replicas.by_model import SpecStore
from inference.protocol.events import Finished
from inference.protocol.held import load_mark
from inference.protocol.keys import inbox_key, preparing_key
from tests.inference.neuron.conftest import TestNeuron, failure_of, wait_until
from tests.inference.neuron.fake_engine import POISON_SEED


def test_a_request_that_ends_its_engine_alone_is_named(
    loaded: TestNeuron, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    request_id = loaded.submit(seed=POISON_SEED)
    failure = failure_of(gateway.wait_end(request_id))
    assert (failure.code, failure.retry_after_s) == ("request_broke_worker", None)
    (line,) = [one for one in caplog.messages if f"request {request_id} " in one]
    assert "account anonymous" in line and "engine of m" in line and "SIGSEGV" in line
    wait_until(lambda: gateway.replica().num_restarts == 1)
    gateway.wait_status("ready")
    assert loaded.answers()


def test_an_engine_that_dies_under_several_blames_none(loaded: TestNeuron, gateway: Any) -> None:
    for request_id in (loaded.running(), loaded.submit(seed=POISON_SEED)):
        failure = failure_of(gateway.wait_end(request_id))
        assert failure.code == "engine_crashed"
        assert failure.retry_after_s is not None


@pytest.mark.parametrize(
    ("marks", "code"),
    [
        ({"gw-1": "before"}, "request_broke_worker"),
        ({"gw-1": "before", "gw-9": "before"}, "neuron_lost"),
    ],
    ids=["it was alone", "it was one of two"],
)
def test_what_the_last_instance_was_preparing_does_not_run(
    neuron: TestNeuron, gateway: Any, redis_db: redis.Redis, marks: dict[str, str], code: str
) -> None:
    """Its frame is still in the inbox."""
    redis_db.hset(preparing_key("n1"), mapping=marks)
    poison, other = gateway.submit(), gateway.submit(max_tokens=1)
    assert neuron.service
    assert failure_of(gateway.wait_end(poison)).code == code
    # A request that only waited is taken as usual: its model is not loaded here.
    assert failure_of(gateway.wait_end(other)).code == "model_not_loaded"
    neuron.load()
    wait_until(lambda: redis_db.xlen(inbox_key("n1")) == 0)
    assert {key.decode() for key in redis_db.hkeys(preparing_key("n1"))} == set(marks)


def test_prepared_requests_leave_no_mark(
    loaded: TestNeuron, gateway: Any, redis_db: redis.Redis
) -> None:
    for request_id in [loaded.submit(max_tokens=1) for _ in range(20)]:
        assert isinstance(gateway.wait_end(request_id)[-1], Finished)
    wait_until(lambda: not redis_db.exists(preparing_key("n1")))


def test_a_model_that_ended_the_neuron_is_not_loaded_again(
    neuron: TestNeuron, gateway: Any, redis_db: redis.Redis
) -> None:
    """It used to end each instance after the other, and with it every other model."""
    SpecStore(redis_db, neuron="n1").write([neuron.spec("lethal"), neuron.spec("good")])
    redis_db.hset(preparing_key("n1"), load_mark("lethal"), "before")
    assert neuron.service
    gateway.wait_status("ready", "good")
    failure = gateway.wait_status("failed", "lethal").failure
    assert (failure.code, failure.is_permanent) == ("bad_file", True)
    specs = SpecStore(redis_db, neuron="n1").read()
    assert [spec.model for spec in specs] == ["good"], "nor by the instance after this one"


def test_a_model_that_was_read_beside_a_request_is_tried_once_more(
    neuron: TestNeuron, gateway: Any, redis_db: redis.Redis
) -> None:
    SpecStore(redis_db, neuron="n1").write([neuron.spec()])
    redis_db.hset(preparing_key("n1"), mapping={load_mark("m"): "before", "r": "before"})
    assert neuron.service
    gateway.wait_status("ready")
