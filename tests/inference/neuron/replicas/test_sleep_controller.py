"""Waking, step by step: no job that asks for it is lost."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import Load
from inference.neuron.replicas.record import ReplicaRecord
from inference.neuron.replicas.sleep_controller import SleepController
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import AsleepBytes
from tests.cases import each_case

WAIT_S = 30.0


def spec_of(job_id: str) -> LoadSpec:
    return LoadSpec(job_id=job_id, model="m", source="path:/m")


def sleeping_record() -> ReplicaRecord:
    loaded: Any = SimpleNamespace()
    record = ReplicaRecord("m", recovering=False)
    record.engine_loaded(loaded, loaded)
    assert record.begin_draining()
    record.fell_asleep(AsleepBytes(device_bytes=1))
    return record


@each_case(
    "problem",
    [LoadRefusedError(LoadFailure(code="does_not_fit", message="no room")), ZeroDivisionError()],
    ids=["refused", "broken"],
)
def test_who_asks_as_soon_as_it_is_seen_to_sleep_on_wakes_it(problem: Exception) -> None:
    """A heartbeat reports that it sleeps on, which lets a gateway ask again."""
    record, woken, jobs = sleeping_record(), threading.Event(), list[str]()
    problems = [problem]

    def readmit(*_: Any) -> bool:
        if problems:
            raise problems.pop()
        return True

    def on_change() -> None:
        if record.status is ReplicaStatus.ASLEEP:
            controller.wake(spec_of("second"))

    context: Any = SimpleNamespace(
        admission=SimpleNamespace(readmit=readmit),
        loads=SimpleNamespace(leave=lambda _: None),
        on_change=on_change,
    )
    run: Any = SimpleNamespace(has_ended=False, wake=woken.set)
    controller = SleepController(
        Load(spec_of("first")),
        record,
        context,
        threading.Event(),
        run=lambda: run,
        adopt_job=lambda spec: jobs.append(spec.job_id),
    )
    controller.wake(spec_of("first"))
    assert woken.wait(WAIT_S)
    assert (jobs, record.status) == (["first", "second"], ReplicaStatus.LOADING)
