"""Models with a tower of a few numbers, as transformers builds them, saves them and runs them; and
pictures that are no file: what stands for one is the seed of its patches."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl_moe import (
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from inference.engine.engine import Engine
from inference.engine.load.build import build_engine
from inference.engine.scheduling.limits import SchedulerLimits
from inference.engine.speculation.speculator import Speculator
from inference.models.backend import AnyModel
from inference.models.errors import InvalidImageError
from inference.models.registry import build_model
from inference.protocol.engine import SubmitSequence
from inference.protocol.images import SequenceImage
from inference.protocol.sampling import SamplingParams
from tests.inference import greedy as answers
from tests.inference.models.families import tiny_hybrid as hybrid

IMAGE_TOKEN = 120
START_TOKEN, END_TOKEN = 121, 122
PATCH_PX, MERGE = 2, 2
PATCH_FEATURES = 3 * 2 * PATCH_PX**2
CONTEXT_TOKENS = hybrid.CONTEXT_TOKENS
BLOCK_TOKENS = hybrid.BLOCK_TOKENS

TOWER = {
    "depth": 3,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": PATCH_PX,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 25,
    "initializer_range": 0.4,
}
TOKENS = {
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 123,
    "vision_start_token_id": START_TOKEN,
    "vision_end_token_id": END_TOKEN,
}
VL_TEXT = {
    "vocab_size": hybrid.VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 100.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}
PROCESSOR = {
    "size": {"shortest_edge": 4 * PATCH_PX**2, "longest_edge": 100 * PATCH_PX**2},
    "patch_size": PATCH_PX,
    "merge_size": MERGE,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


@functools.cache
def qwen3_vl() -> PreTrainedModel:
    """Not to be changed: it is shared."""
    torch.manual_seed(7)
    config = Qwen3VLConfig(
        text_config=VL_TEXT,
        vision_config=TOWER | {"deepstack_visual_indexes": [0, 1]},
        attn_implementation="eager",
        pad_token_id=0,
        **TOKENS,
    )
    return _loud(Qwen3VLForConditionalGeneration(config), norms=(0.5, 1.5))


@functools.cache
def qwen3_vl_moe() -> PreTrainedModel:
    torch.manual_seed(9)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    config = Qwen3VLMoeConfig(
        text_config=VL_TEXT | experts | {"tie_word_embeddings": False},
        vision_config=TOWER | {"deepstack_visual_indexes": [0, 1]},
        attn_implementation="eager",
        pad_token_id=0,
        **TOKENS,
    )
    return _loud(Qwen3VLMoeForConditionalGeneration(config), norms=(0.5, 1.5))


@functools.cache
def qwen3_5() -> PreTrainedModel:
    torch.manual_seed(7)
    config = Qwen3_5Config(
        text_config=hybrid.TEXT,
        vision_config=TOWER,
        attn_implementation="eager",
        pad_token_id=0,
        **TOKENS,
    )
    return _loud(Qwen3_5ForConditionalGeneration(config))


@functools.cache
def qwen3_5_moe() -> PreTrainedModel:
    torch.manual_seed(8)
    text = {key: value for key, value in hybrid.TEXT.items() if key != "intermediate_size"}
    config = Qwen3_5MoeConfig(
        text_config=text | hybrid.SPARSE,
        vision_config=TOWER,
        attn_implementation="eager",
        pad_token_id=0,
        **TOKENS,
    )
    return _loud(Qwen3_5MoeForConditionalGeneration(config))


def _loud(reference: PreTrainedModel, norms: tuple[float, float] = (-0.5, 0.5)) -> PreTrainedModel:
    """Whose answers differ with what a picture shows, and where it stands. ``norms``: between what
    their weights lie."""
    for name, parameter in reference.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, *norms)
        elif name.endswith("bias"):
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
        elif "embed_tokens" in name:
            with torch.no_grad():
                parameter.mul_(5)
    return reference.eval()


def save(reference: PreTrainedModel, directory: Path) -> Path:
    hybrid.save(reference, directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return directory


def on_torch(source: Path, cache_dir: Path) -> AnyModel:
    files = hybrid.opened(source, cache_dir)
    model = build_model(files.config, files.weights, CONTEXT_TOKENS)
    files.close()
    return model


class SeededPatches:
    """An ``ImageProcessor`` whose files hold a number: the seed of an image's patches."""

    def patches(self, data: bytes, grid: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        if not data.isdigit():
            raise InvalidImageError("it holds no number")
        generator = np.random.default_rng(int(data))
        shape = grid[0] * grid[1] * grid[2], PATCH_FEATURES
        return generator.uniform(-1, 1, shape).astype(np.float32)


class Prompt:
    """Texts and images in turns, as a template would render them."""

    def __init__(self, *parts: list[int] | tuple[bytes, int, int]) -> None:
        """An image is its file, and its height and width in rows of the decoder."""
        self.token_ids: list[int] = []
        self.images: list[SequenceImage] = []
        for part in parts:
            if isinstance(part, list):
                self.token_ids += part
            else:
                self._add_image(*part)

    def _add_image(self, data: bytes, height: int, width: int) -> None:
        image = SequenceImage(
            digest=f"digest of {data!r}",
            data=data,
            first_token=len(self.token_ids) + 1,
            num_tokens=height * width,
            grid=(1, MERGE * height, MERGE * width),
        )
        self.images.append(image)
        self.token_ids += [START_TOKEN, *[IMAGE_TOKEN] * image.num_tokens, END_TOKEN]


def greedy(reference: PreTrainedModel, prompt: Prompt, num_tokens: int) -> list[int]:
    """What transformers answers."""
    if not prompt.images:
        return answers.greedy(reference, prompt.token_ids, num_tokens)
    processor = SeededPatches()
    patches = [
        torch.from_numpy(processor.patches(image.data, image.grid)) for image in prompt.images
    ]
    return greedy_of(reference, prompt, patches, num_tokens)


@torch.no_grad()
def greedy_of(
    reference: PreTrainedModel, prompt: Prompt, patches: list[torch.Tensor], num_tokens: int
) -> list[int]:
    """``patches``: of each image, (num_patches, patch_features)."""
    ids = torch.tensor([prompt.token_ids])
    output = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=torch.cat(patches),
        image_grid_thw=torch.tensor([image.grid for image in prompt.images]),
        mm_token_type_ids=(ids == IMAGE_TOKEN).int(),
        max_new_tokens=num_tokens,
        do_sample=False,
    )
    return output[0, ids.shape[1] :].tolist()


def engine_of(
    model: AnyModel,
    *,
    num_kv_blocks: int = 128,
    prefill_tokens_per_step: int = 512,
    speculator: Speculator | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> Engine:
    return build_engine(
        model,
        context_tokens=min(CONTEXT_TOKENS, num_kv_blocks * block_tokens),
        num_kv_blocks=num_kv_blocks,
        block_tokens=block_tokens,
        scheduler_limits=SchedulerLimits(
            prefill_tokens_per_step=prefill_tokens_per_step, max_running=8
        ),
        image_processor=SeededPatches(),
        speculator=speculator,
        check_when_idle=True,
    )


def submit(engine: Engine, sequence_id: str, prompt: Prompt, num_tokens: int) -> None:
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    engine.submit(
        SubmitSequence(
            sequence_id=sequence_id,
            token_ids=prompt.token_ids,
            params=params,
            images=prompt.images,
        )
    )
