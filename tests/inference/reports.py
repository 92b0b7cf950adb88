"""What an engine reports, as far as a test has no wish of its own."""

from __future__ import annotations

from typing import Any

from inference.protocol.engine import EngineStats
from inference.protocol.load_report import LoadReport

REPORT: dict[str, Any] = {
    "architecture": "llama",
    "device": "cpu",
    "dtype": "float32",
    "num_parameters": 0,
    "weight_bytes": 0,
    "kv_bytes": 0,
    "num_kv_blocks": 1,
    "kv_block_tokens": 16,
    "context_tokens": 100,
    "vocab_size": 1000,
    "quantization": "none",
    "compiled": "eager",
    "load_seconds": 0.0,
    "tokenizer_dir": "/nowhere",
    "eos_token_ids": [2],
}
STATS: dict[str, Any] = {
    "in_flight": 0,
    "queue_depth": 0,
    "kv_blocks_used": 0,
    "kv_blocks_total": 64,
    "decode_tokens_per_s": 0.0,
    "prefill_tokens_per_s": 0.0,
    "last_forward_unix_s": None,
}


def load_report(**changes: Any) -> LoadReport:
    return LoadReport(**REPORT | changes)


def engine_stats(**changes: Any) -> EngineStats:
    return EngineStats(**STATS | changes)
