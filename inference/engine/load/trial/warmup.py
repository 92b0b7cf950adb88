"""Runs the first sequences of a fresh engine, so that no request pays for what only first steps
cost."""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.engine import Engine
from inference.engine.errors import DoesNotFitError, WarmupError
from inference.engine.faults.kinds import OutOfMemoryFault
from inference.engine.load.trial.trial import TRIAL_STEPS
from inference.loading.progress import OnProgress
from inference.models.backend import AnyModel
from inference.protocol.engine import SequenceFailed, SubmitSequence
from inference.protocol.load_progress import LoadProgress, LoadStage
from inference.protocol.sampling import SamplingParams

WARMUP_CONCURRENCY = (1, 4)
NATIVE_CONCURRENCY = (1,)
"""The native decoder compiles nothing in its steps, and has run its largest."""
AWAKENING_CONCURRENCY = (1,)
"""After a sleep: kernels are compiled, and threads know their work."""
WARMUP_OUTPUT_TOKENS = 3


def first_concurrencies(model: AnyModel) -> Sequence[int]:
    return NATIVE_CONCURRENCY if model.has_own_threads else WARMUP_CONCURRENCY


def warm_up(
    engine: Engine,
    vocab_size: int,
    on_progress: OnProgress,
    concurrencies: Sequence[int] = WARMUP_CONCURRENCY,
) -> None:
    """Runs a few short sequences to their end, after a trial of the model. Raises ``WarmupError``
    and ``DoesNotFitError``."""
    for done, concurrency in enumerate(concurrencies, start=TRIAL_STEPS):
        on_progress(
            LoadProgress(
                stage=LoadStage.WARMUP,
                done=done,
                total=TRIAL_STEPS + len(concurrencies),
                unit="steps",
                detail=f"{concurrency} at once",
            )
        )
        for index in range(concurrency):
            engine.submit(
                SubmitSequence(
                    sequence_id=f"warm-up-{concurrency}-{index}",
                    token_ids=[(7 * index + offset) % vocab_size for offset in range(5)],
                    params=SamplingParams(max_tokens=WARMUP_OUTPUT_TOKENS, temperature=0.0),
                )
            )
        while engine.has_work:
            for output in engine.step().outputs:
                if not isinstance(output, SequenceFailed):
                    continue
                if output.code == OutOfMemoryFault.code:
                    raise DoesNotFitError("the device ran out of memory in the model's first steps")
                raise WarmupError(f"{output.code}: {output.message}")
