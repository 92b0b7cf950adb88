"""The mmproj files that the tests write, computed by llama.cpp's library for images: the rows of an
image of the tower's own size, which nothing resamples, are transformers', and between the runs of a
divided image stands the same text.

Needs llama-cpp-python, which is built from source: it is in no list of requirements.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from inference.loading.image_processor import vision_input
from inference.protocol.images import image_layout
from tests.inference.llama_cpp_peer import quiet_library
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision import tiny_gemma3, tiny_idefics3, tiny_pixtral
from tests.inference.models.vision.tiny_gemma3 import GEMMA3
from tests.inference.models.vision.tiny_idefics3 import SMOLVLM
from tests.inference.models.vision.tiny_images import TinyModel
from tests.inference.models.vision.tiny_pixtral import MISTRAL3, PIXTRAL

_ = quiet_library

pytestmark = pytest.mark.slow

TOLERANCE = 0.002
"""Of the largest number: llama.cpp looks GELU up in a table of float16."""


def test_the_rows_of_gemma_3(quiet_library: Any, tmp_path: Path) -> None:
    weights = GEMMA3.save_gguf(tmp_path)
    side = tiny_gemma3.IMAGE_PX
    image = np.random.default_rng(5).integers(0, 256, (side, side, 3), dtype=np.uint8)
    pixels = torch.from_numpy(normalised(image, GEMMA3.processor))
    wanted = GEMMA3.features(pixels, GEMMA3.grid).numpy()
    found = rows_of(weights, tmp_path / "mmproj-F32.gguf", image, wanted.shape)
    check_close(found, wanted)


def test_the_text_and_rows_of_smolvlm(quiet_library: Any, tmp_path: Path) -> None:
    """An image of two tiles, which are not resampled: the same text around them, and their rows
    are transformers'. The whole image behind them is scaled, by other filters."""
    side = 2 * tiny_idefics3.SIDE
    assert side % tiny_idefics3.PATCH_PX == 0
    tokens = {10: "Ċ", 11: "ĊĊ", 100: "<row_1_col_1>", 101: "<row_1_col_2>"}
    changes = {"tokens": tokens, "vision.preproc_image_size": 2 * side, "vision.image_size": side}
    weights = SMOLVLM.save_gguf(tmp_path, **changes)
    image = np.random.default_rng(5).integers(0, 256, (side, 2 * side, 3), dtype=np.uint8)
    pixels = normalised(image, SMOLVLM.processor)
    tiles = np.stack((pixels[:, :, :side], pixels[:, :, side:]))
    wanted = SMOLVLM.features(torch.from_numpy(tiles), (2, *SMOLVLM.grid[1:]))
    found = chunks_of(weights, tmp_path / "mmproj-F32.gguf", image, wanted.shape[1])
    texts = [one for one in found if isinstance(one, list)]
    rows = [one for one in found if not isinstance(one, list)]
    vision = vision_input(tiny_hybrid.opened(weights, tmp_path).config)
    assert vision is not None
    layout = image_layout(2 * side, side, vision)
    named = tiny_idefics3.NAMED | tokens | {10: "\n", 11: "\n\n"}
    pieces = ["".join(named[token] for token in text) for text in texts]
    assert pieces == vision.text_of(layout).split("<image>")
    assert len(rows) == layout.num_runs == 3
    check_close(np.concatenate(rows[:2]), wanted.numpy())


@pytest.mark.parametrize(("tiny", "merge"), [(MISTRAL3, 2), (PIXTRAL, 1)])
def test_the_rows_of_pixtral(
    quiet_library: Any, tmp_path: Path, tiny: TinyModel, merge: int
) -> None:
    """llama.cpp puts the text model's row of the token between two rows among an image's own."""
    side = tiny_pixtral.LONGEST_PX
    weights = tiny.save_gguf(tmp_path)
    image = np.random.default_rng(5).integers(0, 256, (side, side, 3), dtype=np.uint8)
    pixels = torch.from_numpy(normalised(image, tiny.processor))
    per_side = side // tiny_pixtral.PATCH_PX
    wanted = tiny.features(pixels, (1, per_side, per_side))
    embeddings = tiny.make().get_input_embeddings().weight
    found = chunks_of(weights, tmp_path / "mmproj-F32.gguf", image, wanted.shape[1])
    (rows,) = (one for one in found if not isinstance(one, list))
    texts = [one for one in found if isinstance(one, list)]
    assert texts == [[tiny_pixtral.END]]
    per_row = per_side // merge
    by_row = wanted.view(per_row, per_row, -1)
    breaks = embeddings[tiny_pixtral.BREAK].detach().expand(per_row, 1, -1)
    whole = torch.cat((by_row, breaks), dim=1).flatten(0, 1)[:-1]
    # Where patches are merged the products of llama.cpp are further off.
    check_close(rows, whole.numpy(), 0.005 if merge > 1 else TOLERANCE)


def check_close(
    found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32], tolerance: float = TOLERANCE
) -> None:
    assert np.abs(found - wanted).max() < tolerance * np.abs(wanted).max()


def normalised(image: npt.NDArray[np.uint8], processor: dict[str, Any]) -> npt.NDArray[np.float32]:
    """(3, height, width)."""
    mean, deviation = (np.array(processor[key]) for key in ("image_mean", "image_std"))
    return ((image / 255 - mean) / deviation).transpose(2, 0, 1).astype(np.float32)


def rows_of(
    weights: Path, mmproj: Path, image: npt.NDArray[np.uint8], shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    """llama.cpp's, of an image (height, width, 3) in one run."""
    found = chunks_of(weights, mmproj, image, shape[1])
    (rows,) = (one for one in found if not isinstance(one, list))
    assert rows.shape == shape
    return rows


def chunks_of(
    weights: Path, mmproj: Path, image: npt.NDArray[np.uint8], width: int
) -> list[list[int] | npt.NDArray[np.float32]]:
    """What llama.cpp's prompt of an image (height, width, 3) alone holds: token ids, and rows of
    ``width`` numbers."""
    import llama_cpp
    from llama_cpp import mtmd_cpp

    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(weights).encode(), params)
    options = mtmd_cpp.mtmd_context_params_default()
    options.use_gpu, options.n_threads, options.print_timings = False, 1, False
    context = mtmd_cpp.mtmd_init_from_file(str(mmproj).encode(), model, options)
    assert context is not None
    data = (ctypes.c_ubyte * image.size).from_buffer_copy(image.tobytes())
    bitmap = mtmd_cpp.mtmd_bitmap_init(image.shape[1], image.shape[0], data)
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    marker = mtmd_cpp.mtmd_get_marker(context)
    text = mtmd_cpp.mtmd_input_text(marker, len(marker), False, True)
    bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert mtmd_cpp.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1) == 0
    found: list[list[int] | npt.NDArray[np.float32]] = []
    try:
        for index in range(mtmd_cpp.mtmd_input_chunks_size(chunks)):
            chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, index)
            count = mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)
            if mtmd_cpp.mtmd_input_chunk_get_tokens_image(chunk) is None:
                size = ctypes.c_size_t()
                tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
                found.append([tokens[i] for i in range(size.value)])
                continue
            assert mtmd_cpp.mtmd_encode_chunk(context, chunk) == 0
            rows = mtmd_cpp.mtmd_get_output_embd(context)
            found.append(np.ctypeslib.as_array(rows, (count, width)).copy())
        return found
    finally:
        mtmd_cpp.mtmd_input_chunks_free(chunks)
        mtmd_cpp.mtmd_bitmap_free(bitmap)
        mtmd_cpp.mtmd_free(context)
        llama_cpp.llama_model_free(model)
