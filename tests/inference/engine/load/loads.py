"""Specs of loads on the CPU, and what their engines answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams


def cpu_spec(path: Path | str, **settings: Any) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source=f"path:{path}", devices=["cpu"], **settings)


def answer_of(
    loaded: LoadedEngine, prompt: list[int], max_tokens: int, **settings: Any
) -> list[int]:
    """The tokens after ``prompt``, greedily."""
    engine = loaded.engine
    assert isinstance(engine, Engine)
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **settings)
    engine.submit(SubmitSequence(sequence_id="a", token_ids=prompt, params=params))
    found: list[int] = []
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep), output
            found += output.token_ids
    return found
