"""One line of the engine's log for each sequence that has ended, by its request's id."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import psutil
import torch

from inference.engine.pending_outputs import Output
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
    """``send``, which logs what has ended first, and adds to its timing what the engine holds of
    the device then."""

    def log_and_send(outputs: StepOutputs) -> None:
        if any(map(_has_ended, outputs.outputs)):
            logged = [_logged(output, outputs.stats) for output in outputs.outputs]
            outputs = msgspec.structs.replace(outputs, outputs=logged)
        send(outputs)

    return log_and_send


def _has_ended(output: Output) -> bool:
    is_last_step = isinstance(output, SequenceStep) and output.timing is not None
    return is_last_step or isinstance(output, SequenceFailed)


def _logged(output: Output, stats: EngineStats) -> Output:
    if isinstance(output, SequenceFailed):
        logger.warning("%s %s: %s", output.sequence_id, output.code, output.message)
    if not isinstance(output, SequenceStep) or output.timing is None:
        return output
    timing = msgspec.structs.replace(output.timing, memory_bytes=held_bytes())
    logger.info(
        "%s %s completion=%d%s kv_blocks=%d/%d",
        output.sequence_id,
        output.finish_reason,
        output.num_output_tokens,
        phases(timing, output.num_output_tokens),
        stats.kv_blocks_used,
        stats.kv_blocks_total,
    )
    return msgspec.structs.replace(output, timing=timing)


def held_bytes() -> int:
    """Of the device: what torch has reserved of it; on processors, the process's resident bytes."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.memory_reserved())
    return int(psutil.Process().memory_info().rss)
