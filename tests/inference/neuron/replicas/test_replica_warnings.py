"""What an engine does a slower way since its load is a line of its replica's report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.record import ReplicaRecord
from inference.neuron.requests.prompts.model_text import ModelText
from inference.protocol.engine import EngineStats
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadReport

SPEC = LoadSpec(job_id="1", model="m", source="path:m")


def _stats(*warnings: str, speculation: str = "") -> EngineStats:
    return EngineStats(
        in_flight=0,
        queue_depth=0,
        kv_blocks_used=0,
        kv_blocks_total=1,
        decode_tokens_per_s=0.0,
        prefill_tokens_per_s=0.0,
        last_forward_unix_s=None,
        speculation=speculation,
        warnings=list(warnings),
    )


def _report() -> LoadReport:
    return LoadReport(
        architecture="llama",
        device="cpu",
        dtype="float32",
        num_parameters=1,
        weight_bytes=1,
        kv_bytes=1,
        num_kv_blocks=1,
        kv_block_tokens=32,
        context_tokens=32,
        vocab_size=10,
        quantization="",
        compiled="",
        load_seconds=1.0,
        tokenizer_dir="",
        warnings=["no C compiler"],
    )


def _warnings(record: ReplicaRecord) -> list[str]:
    report = record.state(SPEC).report
    assert report is not None
    return report.warnings


def test_warnings_of_the_load_and_of_the_time_since() -> None:
    record = ReplicaRecord("m", recovering=False)
    text: Any = SimpleNamespace(report=_report(), capabilities=[])
    record.engine_loaded(cast(EngineProcess, SimpleNamespace()), cast(ModelText, text))
    assert _warnings(record) == ["no C compiler"]
    record.worked(_stats("prefixes on disk are off"))
    assert _warnings(record) == ["no C compiler", "prefixes on disk are off"]
    record.idled(_stats())
    assert _warnings(record) == ["no C compiler"]


def test_drafts_that_were_chosen_lately() -> None:
    record = ReplicaRecord("m", recovering=False)
    report = msgspec.structs.replace(_report(), speculation="auto: whichever pays")
    text: Any = SimpleNamespace(report=report, capabilities=[])
    record.engine_loaded(cast(EngineProcess, SimpleNamespace()), cast(ModelText, text))
    record.worked(_stats(speculation="none in 100 %"))
    found = record.state(SPEC).report
    assert found is not None
    assert found.speculation == "auto: whichever pays; none in 100 %"
