"""Which directories hold an embedding model, and its config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.loading.embedding.embedding_config import read_embedding_config
from inference.protocol.load_errors import BadFileError, LoadError, UnknownArchitectureError
from tests.cases import each_case

BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
QWEN = BERT | {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 32768,
}
SCORER = BERT | {
    "architectures": ["BertForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
}
TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write(directory: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return directory


def declared(config: dict[str, Any] = BERT, **files: Any) -> dict[str, Any]:
    names = {"sentence_bert": "sentence_bert_config.json", "pooling": "1_Pooling/config.json"}
    return {
        "config.json": config,
        "modules.json": [TRANSFORMER, POOLING, NORMALIZE],
        "1_Pooling/config.json": MEAN,
    } | {names.get(name, f"{name}.json"): content for name, content in files.items()}


def test_a_model_that_generates_is_none(tmp_path: Path) -> None:
    assert read_embedding_config(write(tmp_path, {"config.json": QWEN})) is None
    nameless = {key: value for key, value in QWEN.items() if key != "architectures"}
    assert read_embedding_config(write(tmp_path, {"config.json": nameless})) is None


def test_a_bare_encoder(tmp_path: Path) -> None:
    config = read_embedding_config(write(tmp_path, {"config.json": BERT}))
    assert config is not None
    assert (config.pooling, config.normalize) == ("mean", True)
    assert (config.max_input_tokens, config.hidden_size, config.vocab_size) == (512, 32, 100)


def test_a_bare_decoder(tmp_path: Path) -> None:
    headless = QWEN | {"architectures": ["Qwen3Model"]}
    config = read_embedding_config(write(tmp_path, {"config.json": headless}))
    assert config is not None
    assert (config.pooling, config.normalize) == ("last", True)


def test_a_decoder_that_sentence_transformers_declares(tmp_path: Path) -> None:
    files = declared(QWEN, modules=[TRANSFORMER, POOLING], pooling={"pooling_mode_lasttoken": True})
    config = read_embedding_config(write(tmp_path, files))
    assert config is not None
    assert (config.architecture, config.pooling, config.normalize) == ("qwen3", "last", False)


@each_case(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "lasttoken"}, "last"),
        (MEAN | {"pooling_mode": "mean", "include_prompt": True}, "mean"),
    ],
)
def test_pooling(tmp_path: Path, pooling: dict[str, Any], expected: str) -> None:
    config = read_embedding_config(write(tmp_path, declared(pooling=pooling)))
    assert config is not None and config.pooling == expected


@each_case(
    "pooling",
    [
        {},
        MEAN | {"pooling_mode_cls_token": True},
        {"pooling_mode_weightedmean_tokens": True},
        MEAN | {"pooling_mode_mean_sqrt_len_tokens": True},
        {"pooling_mode": "weightedmean"},
    ],
)
def test_pooling_that_is_not_done_is_refused(tmp_path: Path, pooling: dict[str, Any]) -> None:
    with pytest.raises(BadFileError, match="pooling"):
        read_embedding_config(write(tmp_path, declared(pooling=pooling)))


def test_the_length_that_the_model_was_made_for(tmp_path: Path) -> None:
    """Where sentence-transformers would cut, we know the limit to refuse at."""
    files = declared(sentence_bert={"max_seq_length": 256})
    config = read_embedding_config(write(tmp_path, files))
    assert config is not None and config.max_input_tokens == 256


@each_case(("declared_length", "expected"), [(300, 300), (int(1e30), 512)])
def test_the_tokenizers_length(tmp_path: Path, declared_length: int, expected: int) -> None:
    files = declared(tokenizer_config={"model_max_length": declared_length})
    config = read_embedding_config(write(tmp_path, files))
    assert config is not None and config.max_input_tokens == expected


def test_positions_that_begin_after_the_padding(tmp_path: Path) -> None:
    roberta = BERT | {
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaModel"],
        "max_position_embeddings": 514,
        "pad_token_id": 1,
    }
    config = read_embedding_config(write(tmp_path, {"config.json": roberta}))
    assert config is not None and config.max_input_tokens == 512


def test_shorter_vectors_are_for_models_that_declare_them(tmp_path: Path) -> None:
    config = read_embedding_config(write(tmp_path, {"config.json": BERT}))
    assert config is not None and not config.is_matryoshka
    some = {"config.json": BERT | {"matryoshka_dimensions": [16, 8]}}
    config = read_embedding_config(write(tmp_path, some))
    assert config is not None and config.is_matryoshka
    assert config.matryoshka_dimensions == (8, 16)
    config = read_embedding_config(write(tmp_path, {"config.json": BERT | {"is_matryoshka": True}}))
    assert config is not None and config.is_matryoshka and not config.matryoshka_dimensions


@each_case(
    ("declared_fields", "activation"),
    [
        ({}, "sigmoid"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            "identity",
        ),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, "sigmoid"),
    ],
)
def test_a_cross_encoder(tmp_path: Path, declared_fields: dict[str, Any], activation: str) -> None:
    config = read_embedding_config(write(tmp_path, {"config.json": SCORER | declared_fields}))
    assert config is not None
    assert (config.activation, config.dimensions) == (activation, 1)
    assert "score" in config.describe()


def test_prompts_are_reported_and_not_applied(tmp_path: Path) -> None:
    files = declared(config_sentence_transformers={"prompts": {"query": "query: ", "document": ""}})
    config = read_embedding_config(write(tmp_path, files))
    assert config is not None and config.prompt_names == ("query",)
    assert "query" in config.describe()


@each_case(
    ("files", "error", "message"),
    [
        (
            {"config.json": BERT | {"architectures": ["BertForSequenceClassification"]}},
            UnknownArchitectureError,
            "classifies, by 2 labels",
        ),
        (
            {"config.json": BERT | {"architectures": ["BertForQuestionAnswering"]}},
            UnknownArchitectureError,
            "classifies",
        ),
        (
            {"config.json": SCORER | {"sentence_transformers": {"activation_fn": "x.Tanh"}}},
            BadFileError,
            "Tanh",
        ),
        (
            {"config.json": SCORER | {"auto_map": {"AutoModelForSequenceClassification": "m.M"}}},
            UnknownArchitectureError,
            "never run",
        ),
        (
            {"config.json": BERT | {"auto_map": {"AutoModel": "modeling.Model"}}},
            UnknownArchitectureError,
            "never run",
        ),
        (declared(BERT | {"model_type": "t5"}), UnknownArchitectureError, "'t5'"),
        (
            {"config.json": BERT | {"quantization_config": {"quant_method": "awq"}}},
            BadFileError,
            "awq",
        ),
        (declared(modules=[TRANSFORMER]), BadFileError, "lists Transformer"),
        (
            declared(modules=[TRANSFORMER, POOLING, {"path": "2_Dense", "type": "x.Dense"}]),
            BadFileError,
            "Dense",
        ),
        (
            declared(modules=[TRANSFORMER | {"path": "0_Transformer"}, POOLING]),
            BadFileError,
            "0_Transformer",
        ),
        (declared(modules={}), BadFileError, "list of modules"),
        (
            declared(sentence_bert={"do_lower_case": True}, tokenizer={"normalizer": None}),
            BadFileError,
            "lower case",
        ),
    ],
)
def test_refusals(
    tmp_path: Path, files: dict[str, Any], error: type[LoadError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_embedding_config(write(tmp_path, files))


def test_a_tokenizer_that_lowers_case_itself(tmp_path: Path) -> None:
    tokenizer = {"normalizer": {"type": "BertNormalizer", "lowercase": True}}
    files = declared(sentence_bert={"do_lower_case": True}, tokenizer=tokenizer)
    assert read_embedding_config(write(tmp_path, files)) is not None
