"""How long the phases of a sequence took, as a line of a log has it."""

from __future__ import annotations

from inference.protocol.engine import SequenceTiming


def phases(timing: SequenceTiming, num_output_tokens: int) -> str:
    """`` queue_ms=1 prefill_ms=20 prefill_tokens=400 prefill_tokens_per_s=20000 …``, and the memory
    of the device that the engine held at its end."""
    prefill_rate = _rate(timing.prefill_tokens, timing.prefill_ms)
    decode_rate = _rate(num_output_tokens - 1, timing.decode_ms)
    return (
        f" queue_ms={timing.queue_ms:.0f}"
        f" prefill_ms={timing.prefill_ms:.0f} prefill_tokens={timing.prefill_tokens}"
        f" prefill_tokens_per_s={prefill_rate:.0f}"
        f" decode_ms={timing.decode_ms:.0f} decode_tokens_per_s={decode_rate:.1f}"
        f" memory_bytes={timing.memory_bytes}"
    )


def _rate(num_tokens: int, ms: float) -> float:
    return 1000 * num_tokens / ms if ms > 0 else 0.0
