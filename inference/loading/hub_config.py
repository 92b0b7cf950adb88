"""A model's config from a Hugging Face directory: ``ModelConfig``, or ``EmbeddingConfig`` of one
for embeddings. Nothing that changes the result is passed over. Imports no torch.

Of models for embeddings, modules.json (sentence-transformers) declares pooling, normalisation and
limit; a bare encoder takes the mean of its tokens and a bare decoder its last token, with length 1,
as this API's vectors always have; ``…ForSequenceClassification`` with one label scores pairs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from inference.loading.checked_config import check_config, check_counts
from inference.models.config import EmbeddingConfig, ModelConfig, Pooling, ScoreActivation
from inference.models.errors import UnsupportedModuleError
from inference.models.families.hub_config import Json, check_dense, positive_integer
from inference.models.families.quantization import read_quantization
from inference.models.families.registry import (
    check_architecture,
    family_of,
    known_model_types,
    nearest_words,
    unknown_architecture,
)
from inference.models.families.tower import with_pixels
from inference.protocol.load_errors import BadFileError, MissingFileError, UnknownArchitectureError

PROCESSOR = "preprocessor_config.json"
HEAD = re.compile(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")
MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def read_directory_config(directory: Path) -> ModelConfig:
    """Raises ``MissingFileError``, ``BadFileError``, ``UnknownArchitectureError``."""
    config = read_json(directory / "config.json")
    generation = read_json_if_there(directory / "generation_config.json")
    has_processor = (directory / PROCESSOR).is_file()
    read = parse_config(config, generation)
    with refuses_malformed(PROCESSOR):
        return with_pixels(read, read_json(directory / PROCESSOR) if has_processor else None)


def read_json(path: Path) -> Json:
    """Raises ``MissingFileError``, ``BadFileError``."""
    content = _parsed(path)
    if not isinstance(content, dict):
        raise BadFileError(f"{path} does not hold a JSON object")
    return content


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingFileError(f"{path.name} is not in {path.parent}") from None
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"{path} is not JSON: {error}") from None


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Raises ``BadFileError``."""
    return dict(read_json(path)) if path.is_file() else {}


def parse_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``, ``UnknownArchitectureError``."""
    config = with_model_type(config, known_model_types())
    family = check_architecture(str(config["model_type"]))
    with refuses_malformed("config.json"):
        check_counts(config)
        read_quantization(config)
        return check_config(family.read_config(config, generation))


@contextmanager
def refuses_malformed(what: str) -> Iterator[None]:
    """Families read dozens of keys, each in its own way: any of their errors becomes a refusal.
    ``what``: the file that is read inside. Raises ``BadFileError``."""
    try:
        yield
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise BadFileError(f"{what} holds a value that cannot be read: {reason}") from error


def with_model_type(config: Json, known: Iterable[str]) -> Json:
    """Raises ``BadFileError`` where ``architectures`` name none of ``known``."""
    if config.get("model_type") is not None:
        return config
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not architectures:
        raise BadFileError("config.json has neither model_type nor architectures")
    known = list(known)
    by_letters = {_letters(model_type): model_type for model_type in known}
    for name in architectures:
        if found := by_letters.get(_letters(HEAD.sub("", str(name)))):
            return {**config, "model_type": found}
    named = ", ".join(map(str, architectures))
    nearest = nearest_words(HEAD.sub("", str(architectures[0])).lower(), known)
    raise BadFileError(
        f"config.json has no model_type, and {named} is of none that this build runs. {nearest}"
    )


def _letters(name: str) -> str:
    return re.sub(r"[_-]", "", name.lower())


def learnt_config(config: ModelConfig) -> ModelConfig:
    """Completes the config of a model of the transformers backend by facts of its module, built
    without weights; returns others as they are. Raises ``UnknownArchitectureError``."""
    module, _, name = family_of(config).detector.partition(":")
    if not module:
        return config
    learn: Callable[[ModelConfig], ModelConfig] = getattr(import_module(module), name)
    try:
        return learn(config)
    except UnsupportedModuleError as error:
        raise UnknownArchitectureError(str(error)) from error


ENCODERS = ("bert", "camembert", "distilbert", "modernbert", "mpnet", "roberta", "xlm-roberta")
DECODERS = ("llama", "mistral", "qwen2", "qwen3")
POSITIONS_AFTER_PADDING = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta"})
"""They number positions from the padding token's id + 1 on, and have that many fewer."""

POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "cls": "cls",
    "pooling_mode_mean_tokens": "mean",
    "mean": "mean",
    "pooling_mode_max_tokens": "max",
    "max": "max",
    "pooling_mode_lasttoken": "last",
    "lasttoken": "last",
}
TRANSFORMER_CONFIG = "sentence_bert_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
PROMPTS_CONFIG = "config_sentence_transformers.json"
MODULES = "modules.json"


def check_directory_config(directory: Path) -> None:
    """Raises ``MissingFileError``, ``BadFileError``, ``UnknownArchitectureError``."""
    if read_embedding_config(directory) is None:
        learnt_config(read_directory_config(directory))


def read_embedding_config(directory: Path) -> EmbeddingConfig | None:
    """``None`` for a model that generates text. Raises ``MissingFileError``, ``BadFileError``,
    ``UnknownArchitectureError``."""
    config = read_json(directory / "config.json")
    config = with_model_type(config, (*ENCODERS, *DECODERS, *known_model_types()))
    with refuses_malformed("the description of the model"):
        return _read_embedding(directory, config)


def _read_embedding(directory: Path, config: Json) -> EmbeddingConfig | None:
    is_scorer = _classifies(config)
    is_declared = not is_scorer and (directory / MODULES).is_file()
    if not is_declared and not is_scorer and not _is_bare(config):
        return None
    _check_reads_texts(config)
    check_counts(config)
    pooling: Pooling = "mean" if config["model_type"] in ENCODERS else "last"
    normalize = True
    if is_declared:
        pooling, normalize = _declared_pooling(directory)
        _check_lower_case(directory)
    read = EmbeddingConfig(
        architecture=config["model_type"],
        vocab_size=positive_integer(config, "vocab_size"),
        hidden_size=_one_of(config, "hidden_size", "dim"),
        intermediate_size=_one_of(config, "intermediate_size", "hidden_dim"),
        max_input_tokens=_max_input_tokens(directory, config),
        pad_token_id=int(config.get("pad_token_id") or 0),
        pooling=pooling,
        normalize=normalize,
        is_matryoshka=bool(config.get("is_matryoshka") or config.get("matryoshka_dimensions")),
        matryoshka_dimensions=tuple(sorted(config.get("matryoshka_dimensions") or ())),
        activation=_activation(config) if is_scorer else None,
        prompt_names=_prompt_names(directory),
    )
    if read.max_input_tokens < 1:
        raise BadFileError(f"the model reads {read.max_input_tokens} tokens at most")
    if not 0 <= read.pad_token_id < read.vocab_size:
        raise BadFileError(
            f"the padding token {read.pad_token_id} is outside the vocabulary of "
            f"{read.vocab_size} tokens"
        )
    return read


def _is_bare(config: Json) -> bool:
    model_type, names = config.get("model_type"), config.get("architectures") or []
    if model_type in ENCODERS:
        return True
    return model_type in DECODERS and bool(names) and all(n.endswith("Model") for n in names)


def _classifies(config: Json) -> bool:
    names = config.get("architectures") or []
    is_known = config.get("model_type") in ENCODERS + DECODERS
    return is_known and any(name.endswith("ForSequenceClassification") for name in names)


def _activation(config: Json) -> ScoreActivation:
    """As sentence-transformers does: a sigmoid, unless the model declares none."""
    declared = config.get("sentence_transformers") or {}
    name = declared.get("activation_fn", config.get("sbert_ce_default_activation_function"))
    match str(name or "Sigmoid").rpartition(".")[2]:
        case "Identity":
            return "identity"
        case "Sigmoid":
            return "sigmoid"
    raise BadFileError(
        f"config.json declares the activation {name!r}; this build knows Sigmoid and Identity"
    )


def _check_reads_texts(config: Json) -> None:
    architecture = config.get("model_type")
    if architecture not in ENCODERS + DECODERS:
        raise unknown_architecture(str(architecture), ENCODERS + DECODERS)
    for name in config.get("architectures") or []:
        if name.endswith("ForSequenceClassification"):
            num_labels = len(config.get("id2label") or "ab")
            if num_labels != 1:
                raise UnknownArchitectureError(
                    f"{name} classifies, by {num_labels} labels; this build runs those with one, "
                    "which score pairs of texts"
                )
        elif name.endswith(("Classification", "Answering")):
            raise UnknownArchitectureError(f"{name} classifies; it makes no embeddings")
    if {"AutoModel", "AutoModelForSequenceClassification"} & (config.get("auto_map") or {}).keys():
        raise UnknownArchitectureError(
            "the model's own code lies beside its weights (auto_map in config.json); code that "
            "comes with a model is never run here"
        )
    check_dense(config)


def _declared_pooling(directory: Path) -> tuple[Pooling, bool]:
    path = directory / MODULES
    modules = _parsed(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BadFileError(f"{path} does not hold a list of modules")
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BadFileError(
            f"{MODULES} lists {', '.join(kinds) or 'nothing'}; this build runs Transformer, "
            "Pooling and, after them, Normalize"
        )
    if modules[0].get("path"):
        raise BadFileError(
            f"{MODULES} has its Transformer in {modules[0]['path']!r}; it must lie beside it"
        )
    return _pooling(directory / str(modules[1].get("path")) / "config.json"), len(kinds) == 3


def _pooling(path: Path) -> Pooling:
    config = read_json(path)
    asked = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    if isinstance(name := config.get("pooling_mode"), str):
        asked.append(name)
    known = {POOLINGS.get(name) for name in asked}
    pooling = next(iter(known), None)
    if pooling is None or len(known) != 1:
        raise BadFileError(
            f"{path}: pooling by {' and '.join(asked) or 'nothing'} is not supported; this build "
            "pools by one of cls, mean, max, lasttoken"
        )
    return pooling


def _check_lower_case(directory: Path) -> None:
    """Some tokenizers lower their text's case themselves; others count on sentence-transformers."""
    if not read_json_if_there(directory / TRANSFORMER_CONFIG).get("do_lower_case"):
        return
    normalizer = json.dumps(read_json(directory / "tokenizer.json").get("normalizer"))
    if '"lowercase": true' not in normalizer and '"Lowercase"' not in normalizer:
        raise BadFileError(
            f"{TRANSFORMER_CONFIG} asks for text in lower case and tokenizer.json does not make "
            "it so, which is not supported"
        )


def _max_input_tokens(directory: Path, config: Json) -> int:
    positions = positive_integer(config, "max_position_embeddings")
    if config["model_type"] in POSITIONS_AFTER_PADDING:
        positions -= int(config.get("pad_token_id") or 0) + 1
    declared = read_json_if_there(directory / TRANSFORMER_CONFIG).get("max_seq_length")
    if declared is None:
        declared = read_json_if_there(directory / TOKENIZER_CONFIG).get("model_max_length")
    return positions if declared is None else min(positions, int(declared))


def _prompt_names(directory: Path) -> tuple[str, ...]:
    prompts = read_json_if_there(directory / PROMPTS_CONFIG).get("prompts") or {}
    return tuple(name for name, prompt in prompts.items() if prompt)


def _one_of(config: Json, *keys: str) -> int:
    """DistilBERT's names differ from everybody else's."""
    key = next((key for key in keys if key in config), keys[0])
    return positive_integer(config, key)
