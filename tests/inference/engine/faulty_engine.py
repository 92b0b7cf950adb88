"""An engine process whose steps break on purpose: the real one around a ``FaultyExecutor``.

``python -m tests.inference.engine.faulty_engine --fd N``, where ``-m inference.engine`` was.
"""

from __future__ import annotations

import sys
from typing import Any

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine, load_engine
from inference.engine.model_runner import TensorExecutor
from inference.engine.serving import process
from tests.inference.engine.faulty_executor import FaultyExecutor

STEPS_THAT_GO_WELL = 3


def load_faulty_engine(*arguments: Any, **options: Any) -> LoadedEngine:
    loaded = load_engine(*arguments, **options)
    assert isinstance(loaded.engine, Engine)
    assert isinstance(loaded.engine.executor, TensorExecutor)
    loaded.engine.executor = FaultyExecutor(loaded.engine.executor, after=STEPS_THAT_GO_WELL)
    return loaded


if __name__ == "__main__":
    process.load_engine = load_faulty_engine  # type: ignore[attr-defined]
    sys.exit(process.main())
