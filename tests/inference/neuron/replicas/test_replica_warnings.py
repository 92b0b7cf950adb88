"""What a replica reports of its load and of its engine: how long a stage takes, and warnings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inference.neuron.replicas import record as record_module
from inference.neuron.replicas.record import ReplicaRecord
from inference.protocol.engine import EngineStats
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadProgress, LoadStage
from inference.protocol.load_report import LoadReport
from tests.inference.reports import engine_stats, load_report

SPEC = LoadSpec(job_id="1", model="m", source="path:m")


def _stats(*warnings: str, speculation: str = "") -> EngineStats:
    return engine_stats(speculation=speculation, warnings=list(warnings))


def _report() -> LoadReport:
    return load_report(warnings=["no C compiler"])


def _warnings(record: ReplicaRecord) -> list[str]:
    report = record.state().report
    assert report is not None
    return report.warnings


def test_a_stage_of_a_load_begins_with_its_first_report(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100, 200, 10))
    monkeypatch.setattr(record_module, "time", SimpleNamespace(time=lambda: float(next(now))))
    record = ReplicaRecord(SPEC)  # at 100
    since = []
    for stage, done in (("weights", 0), ("weights", 5), ("warmup", 0), ("warmup", 1)):
        record.progressed(LoadProgress(stage=LoadStage(stage), done=done, total=9))
        since.append(record.state().stage_since_unix_s)
    assert since[0] == since[1] == 110.0
    assert since[2] == since[3] == 130.0, "its engine was started at 120"


def test_warnings_of_the_load_and_of_the_time_since() -> None:
    record = ReplicaRecord(SPEC)
    text: Any = SimpleNamespace(report=_report(), capabilities=[])
    record.engine_loaded(text)
    assert _warnings(record) == ["no C compiler"]
    record.reported(_stats("prefixes on disk are off"), worked=True)
    assert _warnings(record) == ["no C compiler", "prefixes on disk are off"]
    record.reported(_stats(), worked=False)
    assert _warnings(record) == ["no C compiler"]


def test_drafts_that_were_chosen_lately() -> None:
    record = ReplicaRecord(SPEC)
    report = msgspec.structs.replace(_report(), speculation="auto: whichever pays")
    text: Any = SimpleNamespace(report=report, capabilities=[])
    record.engine_loaded(text)
    record.reported(_stats(speculation="none in 100 %"), worked=True)
    found = record.state().report
    assert found is not None
    assert found.speculation == "auto: whichever pays; none in 100 %"
