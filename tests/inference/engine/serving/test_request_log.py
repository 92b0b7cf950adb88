"""What the engine logs of sequences that have ended."""

from __future__ import annotations

import pytest

from inference.engine.serving.messenger import logging_ends
from inference.protocol.engine import (
    EngineMessage,
    EngineStats,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    StepOutputs,
)

STATS = EngineStats(
    in_flight=1,
    queue_depth=0,
    kv_blocks_used=3,
    kv_blocks_total=64,
    decode_tokens_per_s=0.0,
    prefill_tokens_per_s=0.0,
    last_forward_unix_s=None,
)
TIMING = SequenceTiming(queue_ms=12.0, prefill_ms=100.0, decode_ms=500.0, prefill_tokens=50)


def test_a_line_for_each_end_and_none_for_tokens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    sent: list[EngineMessage] = []
    outputs = StepOutputs(
        outputs=[
            SequenceStep(sequence_id="runs/0", token_ids=[7]),
            SequenceStep(
                sequence_id="ends/0",
                token_ids=[8],
                finish_reason="length",
                num_output_tokens=11,
                timing=TIMING,
            ),
            SequenceFailed(
                sequence_id="bad/0", code="numerical_error", message="3 logits are not finite"
            ),
        ],
        stats=STATS,
    )
    logging_ends(sent.append)(outputs)
    (message,) = sent
    assert isinstance(message, StepOutputs) and message.stats == STATS
    assert [message.outputs[0], message.outputs[2]] == [outputs.outputs[0], outputs.outputs[2]]
    ended = message.outputs[1]
    assert isinstance(ended, SequenceStep) and ended.timing is not None
    assert ended.timing.memory_bytes > 1_000_000
    finished, failed = caplog.records
    assert (finished.levelname, failed.levelname) == ("INFO", "WARNING")
    words = finished.getMessage().split()
    assert words[:3] == ["ends/0", "length", "completion=11"]
    assert {"queue_ms=12", "prefill_ms=100", "prefill_tokens=50", "decode_ms=500"} <= {*words}
    assert {"prefill_tokens_per_s=500", "decode_tokens_per_s=20.0", "kv_blocks=3/64"} <= {*words}
    assert f"memory_bytes={ended.timing.memory_bytes}" in words
    assert failed.getMessage() == "bad/0 numerical_error: 3 logits are not finite"
