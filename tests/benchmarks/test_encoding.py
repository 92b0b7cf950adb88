"""The encoding benchmark covers every dialect that streams, and times what a client would get."""

from __future__ import annotations

from benchmarks.gateway.encoding import DIALECTS, PARTS, as_lines, encoding_costs
from tests.inference.wire.golden import DIALECTS as GOLDEN_DIALECTS

TEXT_ONLY = {"openai_completions"}
CALLS_COME_WHOLE = {"ollama_chat", "ollama_generate"}
UNSTREAMED = {"ollama_embed", "openai_embeddings", "rerank", "vllm_score"}


def test_every_dialect_and_part_is_timed() -> None:
    costs = encoding_costs()
    assert set(costs) == set(DIALECTS) == set(GOLDEN_DIALECTS) - UNSTREAMED
    for dialect, parts in costs.items():
        assert all(us > 0 for us in parts.values())
        if dialect in TEXT_ONLY:
            assert "text" in parts
        elif dialect in CALLS_COME_WHOLE:
            assert set(parts) == {"reasoning", "text"}
        else:
            assert set(parts) == set(PARTS), dialect
    lines = as_lines(costs)
    assert [line.split()[1].rstrip(":") for line in lines] == list(DIALECTS)
