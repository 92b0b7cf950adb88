"""Loads of models of stages, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine, load_engine
from inference.protocol.load import LoadSpec, StageSpec
from tests.inference.engine.asking import Answers, submit
from tests.inference.engine.asking import cpu_spec

PROMPT = [(7 * n) % 90 + 1 for n in range(100)]
NUM_TOKENS = 12
_loaded: list[LoadedEngine] = []


def spec_of(source: Path, *ends: int, **changes: object) -> LoadSpec:
    """``ends``: of each stage's layers; none: one stage."""
    spec = cpu_spec(
        source,
        kv_memory_bytes=16_000_000,
        stages=[
            StageSpec(device="cpu", layers=bounds) for bounds in zip((0, *ends), ends, strict=False)
        ],
    )
    return msgspec.structs.replace(spec, **changes)


def load(spec: LoadSpec, data_dir: Path) -> LoadedEngine:
    loaded = load_engine(spec, data_dir, lambda _: None, check_when_idle=True)
    _loaded.append(loaded)
    return loaded


def close_all() -> None:
    while _loaded:
        if (children := _loaded.pop().children) is not None:
            children.close()


def answers(loaded: LoadedEngine, longest_prompt: Sequence[int] = PROMPT) -> tuple[list[int], int]:
    """Two sequences at once, the second of the first one's beginning; then how much of the first
    one's prompt is known when it comes again."""
    engine = loaded.engine
    assert isinstance(engine, Engine)
    found = Answers()
    for names in (("a", "b"), ("again",)):
        for name in names:
            submit(engine, name, longest_prompt[: 70 if name == "b" else None], NUM_TOKENS)
        found.drain(engine)
    assert found.failed == {} and found.tokens["again"] == found.tokens["a"]
    return found.tokens["a"] + found.tokens["b"], found.cached["again"]
