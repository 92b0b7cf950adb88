"""What sequences leave in an engine: none is found by the garbage collector alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from inference.engine import faults
from inference.engine.load.build import build_engine
from inference.engine.model_runner import TensorExecutor
from inference.engine.sequence import Sequence
from inference.protocol.engine import CancelSequence
from tests.inference.engine.asking import submit
from tests.inference.engine.faulty_executor import FaultyExecutor, Kind


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sequences() -> list[Sequence]:
    """Finds the sequences by their type itself: ``isinstance`` raises for a weak proxy whose object
    is gone, which other tests may have left."""
    return [there for there in gc.get_objects() if type(there) is Sequence]


@pytest.mark.parametrize("stage", ["forward", "sampling"])
def test_sequences_that_ended_are_freed_at_once(
    llama: Any, stage: Any, no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults.log, "disabled", True)  # pytest keeps log records
    before = sequences()  # kept, so that no new one has the id of an old one
    known = {id(there) for there in before}
    engine = build_engine(
        llama.model,
        context_tokens=256,
        num_kv_blocks=4096 // llama.block_tokens,
        block_tokens=llama.block_tokens,
    )
    assert isinstance(engine.executor, TensorExecutor)
    engine.executor = FaultyExecutor(engine.executor, stage=stage, after=2)
    for number, kind in enumerate((Kind.BAD_SHAPE, Kind.NOT_A_NUMBER, Kind.TOO_LARGE, 5, 6, 7)):
        drawn = {"temperature": 0.8, "seed": number, "top_logprobs": 2, "frequency_penalty": 0.5}
        submit(engine, str(number), [kind, 1, 2, 3], 8, **drawn)
    for _ in range(4):
        engine.step()
    engine.cancel(CancelSequence(sequence_id="5"))
    while engine.has_work:
        engine.step()
    engine.executor.schedule = type(engine.executor.schedule)()
    assert [there.sequence_id for there in sequences() if id(there) not in known] == []
