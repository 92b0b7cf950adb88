"""Every family that runs here. A new one is a ``Family`` and a line in ``FAMILIES``. It stands in
``llama.py`` where only its config differs from llama's, in ``mixtures.py`` where its MLPs are
experts besides, else in a file of its own."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from inference.models.config import ModelConfig
from inference.models.families.cohere import COHERE, COHERE2
from inference.models.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from inference.models.families.family import Family
from inference.models.families.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA4
from inference.models.families.glm import GLM, GLM4, GLM4_MOE
from inference.models.families.gpt_oss import GPT_OSS
from inference.models.families.granite import BAMBA, GRANITE, GRANITE4
from inference.models.families.hunyuan import HUNYUAN_DENSE, HUNYUAN_MOE
from inference.models.families.lfm2 import LFM2, LFM2_MOE
from inference.models.families.llama import (
    ERNIE4_5,
    IDEFICS3,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    SEED_OSS,
    SMOLLM3,
)
from inference.models.families.llama4 import LLAMA4
from inference.models.families.mistral3 import MINISTRAL3, MISTRAL3, PIXTRAL
from inference.models.families.mixtures import (
    DOTS1,
    ERNIE4_5_MOE,
    MINIMAX_M2,
    MIXTRAL,
    OLMOE,
    QWEN2_MOE,
    QWEN3_MOE,
)
from inference.models.families.nemotron_h import NEMOTRON_H
from inference.models.families.olmo2 import EXAONE4, OLMO2, OLMO3
from inference.models.families.phi import PHI3
from inference.models.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from inference.models.families.qwen_vl import QWEN2_5_VL, QWEN3_VL, QWEN3_VL_MOE
from inference.models.families.starcoder2 import STARCODER2
from inference.models.families.transformers_gguf import MODULES
from inference.models.families.transformers_modules import TRANSFORMERS_CACHED, TRANSFORMERS_PAGED
from inference.models.families.transformers_types import REFUSED_TYPES
from inference.protocol.load_errors import UnknownArchitectureError

NUM_NEAREST = 2
LEAST_LIKENESS = 0.7
MODELS_PAGE = "docs/models.md"
"""Lists every architecture that runs, for people."""

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    IDEFICS3,
    MISTRAL,
    QWEN2,
    QWEN3,
    MINISTRAL3,
    MISTRAL3,
    PIXTRAL,
    QWEN2_5_VL,
    QWEN3_5,
    QWEN3_VL,
    QWEN3_VL_MOE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    PHI3,
    GLM,
    GLM4,
    GRANITE,
    GRANITE4,
    SMOLLM3,
    OLMO2,
    OLMO3,
    EXAONE4,
    SEED_OSS,
    ERNIE4_5,
    COHERE,
    COHERE2,
    HUNYUAN_DENSE,
    STARCODER2,
    LFM2,
    BAMBA,
    NEMOTRON_H,
    QWEN3_5_MOE,
    QWEN3_NEXT,
    QWEN2_MOE,
    QWEN3_MOE,
    MIXTRAL,
    GLM4_MOE,
    DOTS1,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GLM4_MOE_LITE,
    MINIMAX_M2,
    ERNIE4_5_MOE,
    HUNYUAN_MOE,
    LLAMA4,
    LFM2_MOE,
    OLMOE,
    GPT_OSS,
)

_OWN = {kind: family for family in FAMILIES for kind in family.model_types}
_TRANSFORMERS = {
    kind: family
    for family in (TRANSFORMERS_PAGED, TRANSFORMERS_CACHED)
    for kind in family.model_types
}
_BY_MODEL_TYPE = _TRANSFORMERS | _OWN
_GGUF_MODULES = {name: _BY_MODEL_TYPE[kind] for name, kind in MODULES.items()}
_BY_GGUF = {
    name: family for family in FAMILIES for name in family.gguf_architectures
} | _GGUF_MODULES


def find_family(model_type: str) -> Family | None:
    return _BY_MODEL_TYPE.get(model_type)


def family_of(config: ModelConfig) -> Family:
    """The family that has read this config."""
    return _BY_MODEL_TYPE[config.architecture]


def known_model_types() -> tuple[str, ...]:
    return tuple(_BY_MODEL_TYPE)


def check_architecture(model_type: str) -> Family:
    """Raises ``UnknownArchitectureError``, which names the nearest ones."""
    family = _BY_MODEL_TYPE.get(model_type)
    if family is None:
        raise unknown_architecture(model_type, _BY_MODEL_TYPE)
    return family


def check_gguf_architecture(architecture: str) -> Family:
    """``architecture``: as GGUF spells it. Raises ``UnknownArchitectureError``, which names the
    nearest ones."""
    family = _BY_GGUF.get(architecture)
    if family is None:
        raise unknown_architecture(architecture, _BY_GGUF)
    return family


def may_read_images(gguf_architecture: str | None) -> bool:
    """Whether the tower of an mmproj file may be of use to a model of this architecture; ``None``:
    it is not known."""
    family = None if gguf_architecture is None else _BY_GGUF.get(gguf_architecture)
    return family is None or bool(family.gguf_projectors)


def unknown_architecture(architecture: str, known: Iterable[str]) -> UnknownArchitectureError:
    """Names up to two of ``known`` that are spelt much alike: all of them would fill a screen."""
    reason = REFUSED_TYPES.get(architecture)
    refused = "" if reason is None else f", which {reason}"
    return UnknownArchitectureError(
        f"the model's architecture is {architecture!r}{refused}; this build does not run it. "
        f"{nearest_words(architecture, known)}"
    )


def nearest_words(architecture: str, known: Iterable[str]) -> str:
    """A likeness of a few letters is none: nothing is named then."""
    near = get_close_matches(architecture, sorted(known), n=NUM_NEAREST, cutoff=LEAST_LIKENESS)
    spelt = f"It runs {' and '.join(near)}, which are spelt nearly so; " if near else ""
    return f"{spelt}{MODELS_PAGE} lists all that it runs"
