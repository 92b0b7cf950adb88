"""The tiny models with images, by the type of their checkpoints."""

from __future__ import annotations

from tests.inference.models.vision.tiny_gemma3 import GEMMA3
from tests.inference.models.vision.tiny_idefics3 import IDEFICS3, SMOLVLM
from tests.inference.models.vision.tiny_images import TinyModel
from tests.inference.models.vision.tiny_pixtral import MISTRAL3, PIXTRAL
from tests.inference.models.vision.tiny_qwen import QWEN

IMAGE_MODELS: dict[str, TinyModel] = {
    "gemma3": GEMMA3,
    "idefics3": IDEFICS3,
    "llava": PIXTRAL,
    "mistral3": MISTRAL3,
    **QWEN,
    "smolvlm": SMOLVLM,
}
