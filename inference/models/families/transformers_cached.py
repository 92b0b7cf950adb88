"""Decoders that transformers has and no family here, and whose layers do not all attend through
transformers' attention interface: run as its own modules, with transformers' own cache over our
blocks and state slots. See ``inference.models.transformers_backend.cached_model``.

What such a cache keeps is not in config.json: it is learnt from the module, without its weights,
before they are read.
"""

from __future__ import annotations

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.hub_config import Json, generation_facts, positive_integer
from inference.models.families.module_numbers import check_numbers
from inference.models.families.nested import LEFT_OUT, OUTER, hub_name
from inference.models.families.transformers_paged import NAMES, check_rope
from inference.models.families.transformers_types import CACHED_TYPES, NESTED_TYPES
from inference.protocol.load_errors import BadFileError


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Sizes that config.json leaves out are 1 until the module is looked at. Raises
    ``BadFileError``."""
    architecture = str(config["model_type"])
    if (nested := NESTED_TYPES.get(architecture)) is not None:
        config, architecture = _text_config(config), nested
    if config.get("is_encoder_decoder"):
        raise BadFileError("models with an encoder are not supported")
    check_rope(config)
    check_numbers(config)
    num_heads = _size(config, "num_heads")
    return ModelConfig(
        architecture=architecture,
        vocab_size=positive_integer(config, "vocab_size") if "vocab_size" in config else 1,
        hidden_size=_size(config, "hidden_size"),
        intermediate_size=_size(config, "intermediate_size"),
        num_layers=_size(config, "num_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=max(1, _size(config, "hidden_size") // num_heads),
        max_positions=_size(config, "max_positions"),
        rms_norm_eps=0.0,
        rope_theta=0.0,
        module_config={
            key: config[key] for key in config if key not in ("quantization_config", "model_type")
        },
        **generation_facts(config, generation),
    )


def _text_config(config: Json) -> Json:
    """What the text model is made of, whatever stands beside it. Raises ``BadFileError``."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise BadFileError(f"config.json of a {config['model_type']} has no text_config")
    return {**{key: config[key] for key in OUTER if key in config}, **text}


def _size(config: Json, name: str) -> int:
    """1 where config.json has none, or one for each layer. Raises ``BadFileError``."""
    given = (key for key in NAMES[name] if not isinstance(config.get(key), list | None))
    found = next((key for key in given if config[key] != 0), None)
    return 1 if found is None else positive_integer(config, found)


TRANSFORMERS_CACHED = Family(
    name="transformers' own modules with their own cache",
    model_types=(*CACHED_TYPES, *NESTED_TYPES),
    read_config=read_config,
    # Only transformers knows what its modules' tensors are called: they are missed at the load.
    tensors=lambda config: (),
    hub_name=hub_name,
    left_out={**LEFT_OUT, "model.visual.": "images"},
    uses_transformers=True,
    learns="inference.models.transformers_backend.learning:learnt_config",
    builder="inference.models.transformers_backend.cached_model:CachedModel",
)
