"""Tiny models with images, whatever their family: images without a file, which are the seed of
their pixels, prompts with them, and what transformers answers."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from inference.engine.engine import Engine
from inference.loading.image_processor import merged_patches
from inference.models.backend import AnyModel
from inference.models.errors import InvalidImageError
from inference.protocol.images import SequenceImage, TokenRun
from tests.inference import greedy
from tests.inference.models.families import tiny_hybrid as hybrid
from tests.inference.models.vision import tiny_mmproj

IMAGE_TOKEN = 120
"""Of every tiny model's vocabulary: an image has one for each of its rows."""
TOWER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TEXT_MODEL = {
    "vocab_size": hybrid.VOCAB_SIZE,
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": hybrid.CONTEXT_TOKENS,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
NORMALISED = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
TEXT = [token % 100 for token in random.Random(30).choices(range(hybrid.VOCAB_SIZE), k=30)]

Grid = tuple[int, int, int]
Numbers = npt.NDArray[np.float32]
Size = tuple[int, ...]
"""What a family counts its images by: rows and columns of tokens or of tiles, or nothing."""
Part = list[int] | tuple[Any, ...]
"""Tokens of text, or an image: its file, and the numbers of its ``Size``."""


def seeded(data: bytes, *shape: int) -> Numbers:
    """The numbers of an image whose file holds their seed. Raises ``InvalidImageError``."""
    if not data.isdigit():
        raise InvalidImageError("it holds no number")
    return np.random.default_rng(int(data)).uniform(-1, 1, shape).astype(np.float32)


class Prompt:
    """Texts and images in turns, as a template would render them."""

    def __init__(self, written: Callable[..., tuple[list[int], Grid]], *parts: Part) -> None:
        """``written``: an image's tokens and its grid, by its ``Size``."""
        self.token_ids: list[int] = []
        self.images: list[SequenceImage] = []
        for part in parts:
            if isinstance(part, list):
                self.token_ids += part
                continue
            data, *size = part
            token_ids, grid = written(*size)
            runs = []
            for token, alike in itertools.groupby(token_ids):
                first, own = len(self.token_ids), list(alike)
                self.token_ids += own
                if token == IMAGE_TOKEN:
                    runs.append(TokenRun(first, len(own)))
            digest = hashlib.sha256(data).hexdigest()
            self.images.append(SequenceImage(digest=digest, data=data, runs=runs, grid=grid))


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A tiny model with its tower, and what its family makes of images. As an ``ImageProcessor`` it
    reads files that hold a seed."""

    make: Callable[[], PreTrainedModel]
    """Its model must not be changed: it is shared."""
    processor: dict[str, Any]
    """preprocessor_config.json."""
    sizes: tuple[Size, Size, Size]
    """Of the images of its prompts; the first one's is for its tower as well."""
    written: Callable[..., tuple[list[int], Grid]]
    """An image's tokens, by its ``Size``."""
    pixels_of: Callable[[bytes, Grid], Numbers]
    """What transformers' model is given of one image."""
    inputs_of: Callable[[list[torch.Tensor], Sequence[Grid]], dict[str, torch.Tensor]]
    """The model's inputs, of images with these grids."""
    merges: tuple[int, int] | None = None
    """The side of a patch in pixels, and how many each way become a row; ``None``: the model is
    given patches."""
    token_types: str = ""
    """The input that marks an image's tokens, where the model has one."""
    projector: Callable[[PreTrainedModel], tiny_mmproj.Projector]
    save_text: Callable[[PreTrainedModel, Path, dict[int, str]], Path] = tiny_mmproj.save_text
    """Writes the text model's GGUF file, with these tokens in place of numbers."""
    named: Mapping[int, str] = field(default_factory=dict)

    @property
    def grid(self) -> Grid:
        return self.written(*self.sizes[0])[1]

    def prompt(self, *parts: Part) -> Prompt:
        return Prompt(self.written, *parts)

    def parts(self) -> dict[str, list[Part]]:
        """Of its prompts."""
        first, second, third = ((b"%d" % (i + 1), *size) for i, size in enumerate(self.sizes))
        return {
            "text": [TEXT],
            "one": [TEXT[:5], first, TEXT[5:9]],
            "several": [TEXT[:3], first, TEXT[3:5], second, third, TEXT[5:20]],
            "last": [TEXT[:11], (b"2", *self.sizes[0])],
        }

    def save(self, directory: Path) -> Path:
        hybrid.save(self.make(), directory)
        return self.save_processor(directory)

    def save_processor(self, directory: Path) -> Path:
        (directory / "preprocessor_config.json").write_text(json.dumps(self.processor))
        return directory

    def save_gguf(
        self, folder: Path, *, tokens: Mapping[int, str] | None = None, **changes: Any
    ) -> Path:
        """Both files; the path of the text model. ``tokens``: as ``save_text`` has them;
        ``changes``: see ``tiny_mmproj.save``."""
        folder.mkdir(exist_ok=True)
        self.save_mmproj(folder / "mmproj-F32.gguf", **changes)
        named = {**self.named, **(tokens or {})}
        return self.save_text(self.make(), folder / "model-F32.gguf", named)

    def save_mmproj(self, path: Path, **changes: Any) -> Path:
        return tiny_mmproj.save(path, self.projector(self.make()), **changes)

    def patches(self, data: bytes, grid: Grid) -> Numbers:
        pixels = self.pixels_of(data, grid)
        if self.merges is None:
            return pixels
        patch_px, merge = self.merges
        num_tiles, height, width = grid
        tiles = pixels.reshape(num_tiles, 3, *pixels.shape[-2:])
        whole = tiles[:, :, : height * patch_px, : width * patch_px]
        return np.concatenate([merged_patches(tile, patch_px, merge) for tile in whole])

    def engine(self, model: AnyModel, **limits: Any) -> Engine:
        return hybrid.engine_of(model, image_processor=self, **limits)

    def greedy(self, prompt: Prompt, num_tokens: int) -> list[int]:
        """What transformers answers."""
        grids = [image.grid for image in prompt.images]
        pixels = [self.pixels(one.data, one.grid) for one in prompt.images]
        return self.greedy_of(self.make(), prompt.token_ids, pixels, num_tokens, grids)

    def pixels(self, data: bytes, grid: Grid) -> torch.Tensor:
        return torch.from_numpy(self.pixels_of(data, grid))

    def greedy_of(
        self,
        reference: PreTrainedModel,
        token_ids: list[int],
        pixels: list[torch.Tensor],
        num_tokens: int,
        grids: Sequence[Grid] = (),
    ) -> list[int]:
        """``pixels``: as ``pixels_of`` has an image's. ``reference``: a model of the family."""
        images = self.inputs_of(pixels, grids) if pixels else {}
        if images and self.token_types:
            is_image = torch.tensor([token_ids]) == reference.config.image_token_id
            images[self.token_types] = is_image.int()
        return greedy.greedy(reference, token_ids, num_tokens, **images)

    @torch.no_grad()
    def features(self) -> torch.Tensor:
        """The rows of one image that transformers' tower makes, (num_rows, hidden_size)."""
        inputs = self.inputs_of([self.pixels(b"1", self.grid)], [self.grid])
        return torch.cat(tuple(self.make().model.get_image_features(**inputs).pooler_output))


def submit(engine: Engine, sequence_id: str, prompt: Prompt, num_tokens: int) -> None:
    hybrid.submit(engine, sequence_id, prompt.token_ids, num_tokens, prompt.images)


def amplify(
    reference: PreTrainedModel,
    tower: tuple[str, ...],
    factors: Mapping[str, float],
    is_offset: Callable[[str], bool] = lambda name: False,
) -> PreTrainedModel:
    """Changes its weights so that its answers depend on an image's content and place.

    ``tower``: parts of the names of its tower's parameters; ``factors``: of others, by a part of
    their names; ``is_offset``: whether a norm's weight is one less than what it multiplies by.
    """
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if ("norm" in name or "ln_pre" in name) and name.endswith("weight"):
                torch.nn.init.uniform_(parameter, *((-0.5, 0.5) if is_offset(name) else (0.5, 1.5)))
            elif name.endswith("bias"):
                torch.nn.init.uniform_(parameter, -0.5, 0.5)
            elif any(part in name for part in tower):
                torch.nn.init.normal_(parameter, std=0.4)
            else:
                for part, factor in factors.items():
                    parameter.mul_(factor if part in name else 1)
    return reference.eval()
