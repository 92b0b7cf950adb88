"""Contexts that the operator clamps below what a step holds: models have no angles beyond them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.load_engine import load_engine
from inference.models.batch import Batch
from inference.models.errors import PositionError
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.load import LoadSpec
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.conftest import CONTEXT_TOKENS, Pair


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"], ids=["torch", "native"])
@pytest.mark.parametrize("context_tokens", [50, 128])
def test_a_clamped_context_loads_and_is_used_to_its_end(
    tiny_model_dir: Path,
    data_dir: Path,
    dtype: Literal["bfloat16", "float32"],
    context_tokens: int,
) -> None:
    spec = LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{tiny_model_dir}",
        devices=["cpu"],
        dtype=dtype,
        max_context_tokens=context_tokens,
        kv_memory_bytes=4 * 1024**2,
        max_concurrent_sequences=16,
    )
    loaded = load_engine(spec, data_dir, lambda _: None)
    engine = loaded.engine
    assert isinstance(engine, Engine)
    assert loaded.report.context_tokens == context_tokens
    prompt = list(range(1, 41))
    params = SamplingParams(max_tokens=context_tokens, temperature=0.0)
    engine.submit(SubmitSequence(sequence_id="longest", token_ids=prompt, params=params))
    answer: list[int] = []
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep), output
            answer += output.token_ids
    assert len(prompt) + len(answer) == context_tokens


def test_a_step_beyond_the_angles_is_refused_before_it_writes(llama: Pair) -> None:
    model, size = llama.model, llama.block_tokens
    num_blocks = CONTEXT_TOKENS // size + 1
    kv = model.new_kv(num_blocks, size)
    beyond = torch.zeros(size, dtype=torch.int64)
    with pytest.raises(PositionError):
        model.forward(Batch.of_sequence(beyond, size, start=CONTEXT_TOKENS), kv)
    last = torch.tensor([CONTEXT_TOKENS])
    row = Batch(last * 0, last, last, torch.arange(num_blocks).unsqueeze(0))
    with pytest.raises(PositionError):
        model.forward(row, kv)
    tensors = [kv.keys, kv.values] if hasattr(kv, "keys") else [x.entries for x in kv.layers]
    assert not any(bool(tensor.any()) for tensor in tensors)
    whole = Batch.of_sequence(beyond.repeat(CONTEXT_TOKENS // size), size)
    assert bool(model.forward(whole, kv).isfinite().all()), "up to them it is computed"
