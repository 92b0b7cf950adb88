"""Models that are given pictures on the native decoder: token for token what transformers answers,
in float32."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.inference.models.families import tiny_hybrid, tiny_vision
from tests.inference.models.families.test_vision import NUM_TOKENS, PROMPTS, REFERENCES
from tests.inference.models.families.tiny_vision import engine_of, submit


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Products this small take longer to share out than to compute, above all on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_images_in_chunks_beside_texts(name: str, library: ctypes.CDLL, tmp_path: Path) -> None:
    """Rows rotated by time, height and width, rows that are a picture's, and what the tower adds to
    them after the first layers; outputs that lag behind their positions."""
    reference = REFERENCES[name]()
    directory = tiny_vision.save(reference, tmp_path / "model")
    model = tiny_hybrid.natively(library, directory, tmp_path)
    assert model.tower is not None
    wanted = {
        which: tiny_vision.greedy(reference, prompt, NUM_TOKENS)
        for which, prompt in PROMPTS.items()
    }
    for num_tokens in (512, 16):
        engine = engine_of(
            model,
            prefill_tokens_per_step=num_tokens,
            block_tokens=model.decoder.block_tokens,
        )
        for which, prompt in PROMPTS.items():
            submit(engine, which, prompt, NUM_TOKENS)
        found, _ = tiny_hybrid.run(engine)
        assert found == wanted
