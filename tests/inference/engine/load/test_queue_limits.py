"""An engine that was loaded has the queue that its spec names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from inference.engine.engine import Engine
from inference.engine.load.load_engine import load_engine
from inference.protocol.engine import SamplingParams, SequenceFailed, SubmitSequence
from inference.protocol.load import LoadSpec
from tests.cases import each_case


def loaded(directory: Path, data_dir: Path, **queue: int | float) -> Engine:
    spec = LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{directory}",
        devices=["cpu"],
        kv_memory_bytes=4 * 1024**2,
        max_concurrent_sequences=1,
    )
    engine = load_engine(msgspec.structs.replace(spec, **queue), data_dir, lambda _: None).engine
    assert isinstance(engine, Engine)
    return engine


def refused(engine: Engine, num_sequences: int) -> list[tuple[str, str]]:
    """Ids and codes of those that fail among so many of one account."""
    for number in range(num_sequences):
        engine.submit(
            SubmitSequence(
                sequence_id=str(number),
                token_ids=[1],
                params=SamplingParams(max_tokens=1),
                account="a",
            )
        )
    outputs = []
    while engine.has_work:
        outputs += engine.step().outputs
    return [(one.sequence_id, one.code) for one in outputs if isinstance(one, SequenceFailed)]


@each_case(
    ("queue", "expected"),
    [
        ({"max_queue_depth": 2, "max_queue_share_percent": 100}, [("3", "queue_full")]),
        ({"max_queue_depth": 4, "max_queue_share_percent": 50}, [("3", "rate_limit_exceeded")]),
        ({"max_queue_depth": 4, "max_queue_share_percent": 100, "max_queue_wait_s": 0.0}, None),
        ({"max_queue_depth": 4, "max_queue_share_percent": 100}, []),
    ],
)
def test_depth_share_and_wait(
    tiny_model_dir: Path, data_dir: Path, queue: dict[str, int | float], expected
) -> None:
    found = refused(loaded(tiny_model_dir, data_dir, **queue), 4)
    if expected is None:
        assert {code for _, code in found} == {"queue_timeout"}
    else:
        assert found == expected
