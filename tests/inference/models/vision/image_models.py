"""The tiny models with images, by the type of their checkpoints."""

from __future__ import annotations

from tests.inference.models.vision import tiny_qwen
from tests.inference.models.vision.tiny_gemma3 import GEMMA3
from tests.inference.models.vision.tiny_idefics3 import IDEFICS3, SMOLVLM
from tests.inference.models.vision.tiny_images import TinyModel
from tests.inference.models.vision.tiny_pixtral import MISTRAL3, PIXTRAL

IMAGE_MODELS: dict[str, TinyModel] = {
    "gemma3": GEMMA3,
    "idefics3": IDEFICS3,
    "llava": PIXTRAL,
    "mistral3": MISTRAL3,
    "qwen2_5_vl": tiny_qwen.QWEN2_5_VL,
    "qwen3_5": tiny_qwen.QWEN3_5,
    "qwen3_5_moe": tiny_qwen.QWEN3_5_MOE,
    "qwen3_vl": tiny_qwen.QWEN3_VL,
    "qwen3_vl_moe": tiny_qwen.QWEN3_VL_MOE,
    "smolvlm": SMOLVLM,
}
