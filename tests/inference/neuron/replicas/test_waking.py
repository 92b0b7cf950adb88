"""Waking, step by step: no job that asks for it is lost."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from inference.neuron.errors import LoadRefusedError
from inference.neuron.replicas.replica import Replica
from inference.protocol.engine import Wake
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case

WAIT_S = 30.0


def spec_of(job_id: str) -> LoadSpec:
    return LoadSpec(job_id=job_id, model="m", source="path:/m")


@each_case(
    "problem",
    [LoadRefusedError(LoadFailure(code="does_not_fit", message="no room")), ZeroDivisionError()],
    ids=["refused", "broken"],
)
def test_who_asks_as_soon_as_it_is_seen_to_sleep_on_wakes_it(problem: Exception) -> None:
    """A heartbeat reports that it sleeps on, which lets a gateway ask again."""
    woken, jobs = threading.Event(), list[str]()
    problems = [problem]

    def readmit(*_: Any) -> bool:
        jobs.append(replica.spec.job_id)
        if problems:
            raise problems.pop()
        return True

    def on_change() -> None:
        if replica.status is ReplicaStatus.ASLEEP:
            replica.wake(spec_of("second"))

    def send(command: object) -> None:
        assert isinstance(command, Wake)
        woken.set()

    context: Any = SimpleNamespace(
        admission=SimpleNamespace(readmit=readmit),
        on_change=on_change,
    )
    replica = Replica(spec_of("first"), context)
    engine: Any = SimpleNamespace(send=send, silence=None)
    replica._engine, replica.status = engine, ReplicaStatus.ASLEEP
    replica.wake(spec_of("first"))
    assert woken.wait(WAIT_S)
    assert (jobs, replica.status) == (["first", "second"], ReplicaStatus.LOADING)


def test_one_that_is_unloaded_as_it_may_wake_ends_once_its_requests_are_done() -> None:
    woken, stopped, submits = threading.Event(), threading.Event(), ["runs"]

    def readmit(*_: Any) -> bool:
        replica.drain()
        return True

    context: Any = SimpleNamespace(
        admission=SimpleNamespace(readmit=readmit),
        loads=SimpleNamespace(wake=lambda: None),
        table=SimpleNamespace(submits_of=lambda _: submits),
        on_change=lambda: None,
        clock=lambda: 0.0,
        load_stall_limit_s=None,
        silence_limit_s=None,
    )
    replica = Replica(spec_of("first"), context)
    engine: Any = SimpleNamespace(
        send=lambda _: woken.set(),
        stop=stopped.set,
        check=lambda _: 0.0,
        is_stopping=False,
        silence=None,
    )
    replica._engine, replica.status = engine, ReplicaStatus.ASLEEP
    replica.wake(spec_of("first"))
    assert woken.wait(WAIT_S) and not stopped.is_set()
    submits.clear()
    replica.tick()
    assert stopped.is_set()
