"""One line of the engine's log for each sequence that has ended, by its request's id."""

from __future__ import annotations

import logging
from collections.abc import Callable

import psutil
import torch

from inference.logs.phases import phases
from inference.protocol.engine import (
    EngineMessage,
    EngineStats,
    SequenceFailed,
    SequenceStep,
    StepOutputs,
)

logger = logging.getLogger(__name__)


def logging_ends(send: Callable[[EngineMessage], None]) -> Callable[[StepOutputs], None]:
    """``send``, which logs what has ended first."""

    def log_and_send(outputs: StepOutputs) -> None:
        for output in outputs.outputs:
            if isinstance(output, SequenceStep):
                if output.timing is not None:
                    _log_finished(output, outputs.stats)
            elif isinstance(output, SequenceFailed):
                logger.warning("%s %s: %s", output.sequence_id, output.code, output.message)
        send(outputs)

    return log_and_send


def _log_finished(step: SequenceStep, stats: EngineStats) -> None:
    assert step.timing is not None
    logger.info(
        "%s %s completion=%d%s kv_blocks=%d/%d memory_bytes=%d",
        step.sequence_id,
        step.finish_reason,
        step.num_output_tokens,
        phases(step.timing, step.num_output_tokens),
        stats.kv_blocks_used,
        stats.kv_blocks_total,
        held_bytes(),
    )


def held_bytes() -> int:
    """Of the device: what torch has reserved of it; on processors, the process's resident bytes."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.memory_reserved())
    return int(psutil.Process().memory_info().rss)
