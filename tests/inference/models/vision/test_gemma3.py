"""Gemma 3 alone: the rows of one image attend to each other, and a vocabulary may lack its images'
token."""

from __future__ import annotations

import ctypes
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from inference.engine.load import trial
from inference.models.vision.tower import Tower
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.test_image_files import vision_of
from tests.inference.models.vision.tiny_gemma3 import GEMMA3
from tests.inference.models.vision.tiny_images import submit

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 8
PROMPTS = {which: GEMMA3.prompt(*parts) for which, parts in GEMMA3.parts().items()}


def test_threads_that_have_blocks_of_rows_each(library: ctypes.CDLL, tmp_path: Path) -> None:
    wanted = {which: GEMMA3.greedy(prompt, NUM_OUTPUTS) for which, prompt in PROMPTS.items()}
    directory = GEMMA3.save(tmp_path / "model")
    torch.set_num_threads(3)
    model = tiny_hybrid.natively(library, directory, tmp_path)
    for _ in range(5):
        engine = GEMMA3.engine(model, block_tokens=model.decoder.block_tokens)
        for which, prompt in PROMPTS.items():
            submit(engine, which, prompt, NUM_OUTPUTS)
        found, _ = tiny_hybrid.run(engine)
        assert found == wanted


def test_a_trial_may_run_a_part_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_hybrid.on_torch(GEMMA3.save(tmp_path / "model"), tmp_path)
    assert model.tower is not None
    operations = 20 * trial.block_weights(model.tower.config)
    monkeypatch.setattr(trial, "LARGEST_TRIAL_OPERATIONS", operations)
    with patch.object(Tower, "__call__", autospec=True, side_effect=Tower.__call__) as spy:
        trial.run_largest_image(model)
    ((_, patches, grid),) = (call.args for call in spy.call_args_list)
    assert grid == (1, 4, 4) and len(patches) == 16


def test_a_vocabulary_without_the_images_token(tmp_path: Path) -> None:
    unused = {120: "120", 99: "<unused7>", 101: "<unused8>"}
    vision = vision_of(GEMMA3.save_gguf(tmp_path, tokens=unused))
    assert vision.image_token_id == 101 and vision.text is not None
    assert vision.text.written == "\n\n<start_of_image><unused8><end_of_image>\n\n"
