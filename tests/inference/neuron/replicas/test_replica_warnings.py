"""What a replica reports of its load and of its engine: how long a stage takes, and warnings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference.neuron.replicas import record as record_module
from inference.neuron.replicas.record import ReplicaRecord
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.inference.reports import engine_stats, load_report

SPEC = LoadSpec(job_id="1", model="m", source="path:m")


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


def test_the_report_has_the_engines_warnings_and_drafts_of_lately() -> None:
    record = ReplicaRecord(SPEC)
    report = load_report(warnings=["no C compiler"], speculation="auto: whichever pays")
    text: Any = SimpleNamespace(report=report, capabilities=[])
    record.engine_loaded(text)
    for warnings, speculation in (
        ([], ""),
        (["prefixes on disk are off"], "none in 100 %"),
        ([], ""),
    ):
        stats = engine_stats(speculation=speculation, warnings=warnings)
        record.reported(stats, worked=bool(warnings))
        found = record.state().report
        assert found is not None
        assert found.warnings == ["no C compiler", *warnings]
        lately = f"; {speculation}" if speculation else ""
        assert found.speculation == f"auto: whichever pays{lately}"
