"""Which directories hold an embedding model, and its config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.loading.embedding.embedding_config import EmbeddingConfig, read_embedding_config
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
ROBERTA = BERT | {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "max_position_embeddings": 514,
    "pad_token_id": 1,
}
"""Its positions begin after the padding."""
SCORER = BERT | {
    "architectures": ["BertForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
}
TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def read(folder: Path, config: dict[str, Any] = BERT, **files: Any) -> EmbeddingConfig | None:
    """``files``: beside config.json, by their names without the suffix."""
    names = {"sentence_bert": "sentence_bert_config.json", "pooling": "1_Pooling/config.json"}
    (folder / "1_Pooling").mkdir()
    for name, content in ({"config": config} | files).items():
        (folder / names.get(name, f"{name}.json")).write_text(json.dumps(content))
    return read_embedding_config(folder)


MODULES = {"modules": [TRANSFORMER, POOLING, NORMALIZE], "pooling": MEAN}
LAST = {"modules": [TRANSFORMER, POOLING], "pooling": {"pooling_mode_lasttoken": True}}
LOWERED = MODULES | {"sentence_bert": {"do_lower_case": True}}
LOWERS = {"type": "BertNormalizer", "lowercase": True}
IDENTITY = "torch.nn.modules.linear.Identity"


@each_case(
    ("config", "files", "expected"),
    [
        (BERT, {}, {"pooling": "mean", "normalize": True, "max_input_tokens": 512}),
        (QWEN | {"architectures": ["Qwen3Model"]}, {}, {"pooling": "last", "normalize": True}),
        (QWEN, LAST, {"architecture": "qwen3", "pooling": "last", "normalize": False}),
        *(
            (BERT, MODULES | {"pooling": declared}, {"pooling": pooling})
            for declared, pooling in (
                ({"pooling_mode_cls_token": True}, "cls"),
                ({"pooling_mode_max_tokens": True}, "max"),
                ({"pooling_mode": "lasttoken"}, "last"),
                (MEAN | {"pooling_mode": "mean", "include_prompt": True}, "mean"),
            )
        ),
        # Where sentence-transformers would cut, we know the limit to refuse at.
        (BERT, MODULES | {"sentence_bert": {"max_seq_length": 256}}, {"max_input_tokens": 256}),
        *(
            (BERT, MODULES | {"tokenizer_config": {"model_max_length": length}}, expected)
            for length, expected in (
                (300, {"max_input_tokens": 300}),
                (10**30, {"max_input_tokens": 512}),
            )
        ),
        (ROBERTA, {}, {"max_input_tokens": 512}),
        # Shorter vectors are for models that declare them.
        (
            BERT | {"matryoshka_dimensions": [16, 8]},
            {},
            {"is_matryoshka": True, "matryoshka_dimensions": (8, 16)},
        ),
        (BERT | {"is_matryoshka": True}, {}, {"is_matryoshka": True, "matryoshka_dimensions": ()}),
        # Cross encoders.
        (SCORER, {}, {"activation": "sigmoid", "dimensions": 1}),
        *(
            (SCORER | declared, {}, {"activation": activation})
            for declared, activation in (
                ({"sentence_transformers": {"activation_fn": IDENTITY}}, "identity"),
                ({"sbert_ce_default_activation_function": IDENTITY}, "identity"),
                ({"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, "sigmoid"),
            )
        ),
        (BERT, LOWERED | {"tokenizer": {"normalizer": LOWERS}}, {"pooling": "mean"}),
    ],
)
def test_what_a_directory_declares(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = read(tmp_path, config, **files)
    assert found is not None
    assert {name: getattr(found, name) for name in expected} == expected
    assert ("score" in found.describe()) is (config["architectures"] == SCORER["architectures"])


def test_a_model_that_generates_is_none(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN) is None
    nameless = {key: QWEN[key] for key in QWEN if key != "architectures"}
    (tmp_path / "config.json").write_text(json.dumps(nameless))
    assert read_embedding_config(tmp_path) is None


def test_prompts_are_reported_and_not_applied(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "document": ""}}
    config = read(tmp_path, **MODULES, config_sentence_transformers=prompts)
    assert config is not None and config.prompt_names == ("query",)
    assert "query" in config.describe()


CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"]}
ANSWERER = BERT | {"architectures": ["BertForQuestionAnswering"]}
TANH = {"sentence_transformers": {"activation_fn": "x.Tanh"}}
REMOTE = {"auto_map": {"AutoModelForSequenceClassification": "m.M"}}
DENSE = {"path": "2_Dense", "type": "x.Dense"}
ELSEWHERE = TRANSFORMER | {"path": "0_Transformer"}
UNKNOWN, BAD = UnknownArchitectureError, BadFileError


@each_case(
    ("config", "files", "error", "message"),
    [
        (CLASSIFIER, {}, UNKNOWN, "classifies, by 2 labels"),
        (ANSWERER, {}, UNKNOWN, "classifies"),
        (SCORER | TANH, {}, BAD, "Tanh"),
        (SCORER | REMOTE, {}, UNKNOWN, "never run"),
        (BERT | {"auto_map": {"AutoModel": "m.M"}}, {}, UNKNOWN, "never run"),
        (BERT | {"model_type": "t5"}, MODULES, UNKNOWN, "'t5'"),
        (BERT | {"quantization_config": {"quant_method": "awq"}}, {}, BAD, "awq"),
        (BERT, {"modules": [TRANSFORMER]}, BAD, "lists Transformer"),
        (BERT, MODULES | {"modules": [TRANSFORMER, POOLING, DENSE]}, BAD, "Dense"),
        (BERT, MODULES | {"modules": [ELSEWHERE, POOLING]}, BAD, "0_Transformer"),
        (BERT, {"modules": {}}, BAD, "list of modules"),
        (BERT, LOWERED | {"tokenizer": {"normalizer": None}}, BAD, "lower case"),
        *(
            (BERT, MODULES | {"pooling": pooling}, BAD, "pooling")
            for pooling in (
                {},
                MEAN | {"pooling_mode_cls_token": True},
                {"pooling_mode_weightedmean_tokens": True},
                MEAN | {"pooling_mode_mean_sqrt_len_tokens": True},
                {"pooling_mode": "weightedmean"},
            )
        ),
    ],
)
def test_refusals(
    tmp_path: Path,
    config: dict[str, Any],
    files: dict[str, Any],
    error: type[LoadError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        read(tmp_path, config, **files)
