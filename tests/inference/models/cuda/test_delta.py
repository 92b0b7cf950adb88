"""Triton's chunk states against torch's, and a hybrid that runs with them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from inference.models.cuda import setup
from inference.models.cuda.delta import triton_chunk_states
from inference.models.decoder import DecoderModel
from inference.models.layers.delta_net import torch_chunk_states
from tests.cases import each_case
from tests.inference.models.families import tiny_hybrid as tiny


@each_case("sizes", [(1, 2, 16, 16), (5, 3, 32, 24), (4, 1, 128, 40), (2, 2, 24, 8)])
def test_states_are_torchs(device: torch.device, sizes: tuple[int, int, int, int]) -> None:
    chunks, heads, keys, values = sizes
    generator = torch.Generator().manual_seed(1)
    carried = torch.randn(chunks, heads, keys, keys, generator=generator) / keys**0.5
    written = torch.randn(chunks, heads, keys, values, generator=generator)
    given = [part.to(device) for part in (carried, written, written[0] * 2)]
    for found, wanted in zip(triton_chunk_states(*given), torch_chunk_states(*given), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


on_processors = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton's interpreter runs a model on processors"
)


@pytest.mark.slow
@on_processors
@torch.inference_mode()
def test_a_hybrid_reads_prompts_by_them(tmp_path: Path) -> None:
    directory = tiny.save(tiny.qwen3_5(), tmp_path)
    plain, accelerated = (tiny.on_torch(directory, tmp_path / "cache") for _ in range(2))
    assert isinstance(accelerated, DecoderModel)
    _, words = setup.install_kernels(accelerated)
    assert "chunk states" in words and accelerated.operators.chunk_states is triton_chunk_states
    prompt = random.Random(1).choices(range(tiny.VOCAB_SIZE), k=150)
    found, wanted = (tiny.logits_of(model, prompt) for model in (accelerated, plain))
    assert torch.allclose(found, wanted, atol=1e-3)


@on_processors
def test_a_kernel_that_is_wrong_is_found(tmp_path: Path) -> None:
    model = tiny.on_torch(tiny.save(tiny.qwen3_5(), tmp_path), tmp_path / "cache")
    assert isinstance(model, DecoderModel)
    setup.try_chunk_states(model, triton_chunk_states)
    with pytest.raises(setup.WrongResultError):
        setup.try_chunk_states(model, lambda a, b, s: torch_chunk_states(a, b, s * 1.01))
