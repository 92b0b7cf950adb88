"""Images and windows over stages of other neurons: token for token what one engine answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.images import (
    SequenceImage,
    TokenRun,
    VisionInput,
    image_grid,
    num_image_tokens,
)
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.stages.loads import answers, close_all, load, spec_of
from tests.inference.engine.stages.remote_stages import HERE, remote_stages
from tests.inference.loading.test_image_processor import encoded, noise_image
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.tiny_gemma3 import GEMMA3, WINDOW
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN
from tests.inference.models.vision.tiny_qwen import QWEN3_VL

pytestmark = pytest.mark.slow

EXACT = {"dtype": "float32"}
"""Rows to other hosts are not rounded."""
NUM_TOKENS = 8
SIZES_PX = ((23, 14), (30, 22))
TEXT = [(7 * n) % 90 + 1 for n in range(40)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory, native_cache_dir: Path) -> Path:
    directory = tmp_path_factory.mktemp("remote-images")
    (directory / "cache").mkdir()
    (directory / "cache" / "native").symlink_to(native_cache_dir)
    return directory


def prompt_of(takes: VisionInput, image_token: int, pillow: Any) -> SubmitSequence:
    """Texts with an image between any two."""
    token_ids, images = TEXT[:5], []
    for size_px in SIZES_PX:
        data = encoded(noise_image(pillow, size_px), "PNG")
        grid = image_grid(*size_px, takes)
        num_tokens = num_image_tokens(grid, takes.merge)
        image = SequenceImage(
            digest=hashlib.sha256(data).hexdigest(),
            data=data,
            runs=[TokenRun(first_token=len(token_ids), num_tokens=num_tokens)],
            grid=grid,
        )
        images.append(image)
        token_ids = [*token_ids, *[image_token] * num_tokens, *TEXT[5:25]]
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
    return SubmitSequence(sequence_id="", token_ids=token_ids, images=images, params=params)


def answered(loaded: LoadedEngine, image_token: int, pillow: Any) -> list[list[int]]:
    """The answer with the images, without them beside it, and with them once more."""
    takes, engine = loaded.report.vision, loaded.engine
    assert takes is not None and isinstance(engine, Engine)
    seen = prompt_of(takes, image_token, pillow)
    blind = SubmitSequence(sequence_id="", token_ids=TEXT, params=seen.params)
    found: dict[str, list[int]] = {}
    for together in (("seen", "blind"), ("again",)):
        for name in together:
            asked = blind if name == "blind" else seen
            engine.submit(
                SubmitSequence(
                    sequence_id=name,
                    token_ids=asked.token_ids,
                    images=asked.images,
                    params=asked.params,
                )
            )
        while engine.has_work:
            for output in engine.step().outputs:
                assert isinstance(output, SequenceStep), output
                found.setdefault(output.sequence_id, []).extend(output.token_ids)
    assert found["again"] == found["seen"] and len(found["seen"]) == NUM_TOKENS
    return [found["seen"], found["blind"]]


def qwen3_vl(directory: Path) -> Path:
    """It adds rows of its images to the first two layers' output, each on another host."""
    return QWEN3_VL.save(directory)


def gemma3(directory: Path) -> Path:
    """Tokens of an image see the later ones of it, in windows of fewer tokens than it has."""
    return GEMMA3.save(directory)


@pytest.mark.parametrize(
    ("save", "image_token", "neurons", "ends"),
    [
        pytest.param(qwen3_vl, IMAGE_TOKEN, [HERE, "b", "c"], (1, 2, 3), id="qwen3-vl"),
        pytest.param(gemma3, IMAGE_TOKEN, [HERE, "b"], (2, 7), id="gemma3"),
        pytest.param(gemma3, IMAGE_TOKEN, [HERE, "b", HERE], (1, 5, 7), id="gemma3-and-back"),
    ],
)
def test_images(
    tmp_path: Path,
    data_dir: Path,
    save: Callable[[Path], Path],
    image_token: int,
    neurons: list[str],
    ends: tuple[int, ...],
) -> None:
    pillow = pytest.importorskip("PIL.Image")
    directory = save(tmp_path / "model")
    expected = answered(load(spec_of(directory, **EXACT), data_dir), image_token, pillow)
    with remote_stages(directory, data_dir, neurons, *ends, **EXACT) as there:
        loaded = load(there.spec, data_dir)
        assert [stage.neuron for stage in loaded.report.stages] == neurons
        assert answered(loaded, image_token, pillow) == expected
        close_all()


def test_windows(tmp_path: Path, data_dir: Path) -> None:
    """Prompts of many windows; the layer that sees the whole context is on the other host."""
    directory = GEMMA3.save(tmp_path / "model")
    assert len(TEXT) > 5 * WINDOW
    prompt = [1 + token % 90 for token in range(0, 3 * 90, 3)]
    assert len(prompt) + NUM_TOKENS < tiny_hybrid.CONTEXT_TOKENS
    expected = answers(load(spec_of(directory, **EXACT), data_dir), prompt)
    with remote_stages(directory, data_dir, [HERE, "b"], 3, 7, **EXACT) as there:
        assert answers(load(there.spec, data_dir), prompt) == expected
        close_all()
