"""What an engine process serves: an engine, or a model that sleeps until it is wanted again."""

from __future__ import annotations

import time

import msgspec

from inference.engine.embedding.embedding_engine import EmbeddingEngine
from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine
from inference.engine.load.sleeper import Sleeper
from inference.protocol.engine import Awake, EngineStats, FellAsleep

AnyEngine = Engine | EmbeddingEngine

ASLEEP = EngineStats(
    in_flight=0,
    queue_depth=0,
    kv_blocks_used=0,
    kv_blocks_total=0,
    decode_tokens_per_s=0.0,
    prefill_tokens_per_s=0.0,
    last_forward_unix_s=None,
)
"""The figures of a model without an engine."""


class Served:
    """The one place that holds the engine, so that it is gone when it is let go of here."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self.engine: AnyEngine | None = loaded.engine
        self._sleeper: Sleeper | None = loaded.sleeper

    def stats(self) -> EngineStats:
        if self.engine is not None:
            return self.engine.stats()
        warnings = [] if self._sleeper is None else self._sleeper.warnings
        return msgspec.structs.replace(ASLEEP, warnings=warnings)

    @property
    def has_work(self) -> bool:
        return self.engine is not None and self.engine.has_work

    def fall_asleep(self) -> FellAsleep:
        """Nobody waits for anything of the engine's."""
        assert self._sleeper is not None, "the neuron knows by the report what cannot sleep"
        self.close()
        self.engine = None
        return FellAsleep(held=self._sleeper.fall_asleep())

    def wake(self) -> Awake:
        """One that is awake stays as it is."""
        started_s = time.monotonic()
        if self.engine is None:
            assert self._sleeper is not None, "it fell asleep"
            self.engine = self._sleeper.wake()
        return Awake(seconds=time.monotonic() - started_s)

    def close(self) -> None:
        """What is to be on disk is written."""
        if isinstance(self.engine, Engine):
            self.engine.close()
