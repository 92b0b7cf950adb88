"""Which directories hold an embedding model, and its config; and real files: our vectors against
transformers and a pooling by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import AutoModel, AutoTokenizer

from inference.loading import loader
from inference.loading.embedding_loader import OpenedEmbeddingModel, check_embedding_fits
from inference.loading.hub_config import EmbeddingConfig, read_embedding_config
from inference.models.embedding import EmbeddingModel
from inference.protocol import load_errors as errors
from inference.protocol.load import EarlierLoads
from inference.text.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.loading.conftest import opened

Facts = dict[str, Any]
BERT: Facts = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 100}
BERT |= {"hidden_size": 32, "intermediate_size": 64}
BERT |= {"max_position_embeddings": 512, "pad_token_id": 0}
QWEN = BERT | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
ROBERTA = BERT | {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}
ROBERTA |= {"max_position_embeddings": 514, "pad_token_id": 1}
"""Its positions begin after the padding."""
CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"]}
SCORER = CLASSIFIER | {"id2label": {"0": "LABEL_0"}}
TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
SHORTER, SIZES = {"is_matryoshka": True}, "matryoshka_dimensions"
SQUARE_ROOT = "pooling_mode_mean_sqrt_len_tokens"
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
LOWERS = {"tokenizer": {"normalizer": {"type": "BertNormalizer", "lowercase": True}}}
PROMPTS = {"config_sentence_transformers": {"prompts": {"query": "query: ", "document": ""}}}
LENGTH, IDENTITY = "max_input_tokens", "torch.nn.modules.linear.Identity"


def declares(model_max_length: int) -> Facts:
    return MODULES | {"tokenizer_config": {"model_max_length": model_max_length}}


@each_case(
    ("config", "files", "expected"),
    [
        (BERT, {}, {"pooling": "mean", "normalize": True, LENGTH: 512}),
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
        (BERT, MODULES | {"sentence_bert": {"max_seq_length": 256}}, {LENGTH: 256}),
        (BERT, declares(300), {LENGTH: 300}),
        (BERT, declares(10**30), {LENGTH: 512}),
        (ROBERTA, {}, {LENGTH: 512}),
        # Shorter vectors are for models that declare them.
        (BERT | {"matryoshka_dimensions": [16, 8]}, {}, SHORTER | {SIZES: (8, 16)}),
        (BERT | {"is_matryoshka": True}, {}, SHORTER | {SIZES: ()}),
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
        (BERT, LOWERED | LOWERS, {"pooling": "mean"}),
        # Prompts are not applied.
        (BERT, MODULES | PROMPTS, {"prompt_names": ("query",)}),
        # A model that generates.
        (QWEN, {}, None),
        ({key: value for key, value in QWEN.items() if key != "architectures"}, {}, None),
    ],
)
def test_what_a_directory_declares(
    tmp_path: Path, config: Facts, files: Facts, expected: Facts | None
) -> None:
    found = read(tmp_path, config, **files)
    if expected is None or found is None:
        assert found is expected
        return
    assert {name: getattr(found, name) for name in expected} == expected
    assert ("score" in found.describe()) is (config["architectures"] == SCORER["architectures"])
    assert ("query" in found.describe()) is (PROMPTS.items() <= files.items())


ANSWERER = BERT | {"architectures": ["BertForQuestionAnswering"]}
TANH = {"sentence_transformers": {"activation_fn": "x.Tanh"}}
REMOTE = {"auto_map": {"AutoModelForSequenceClassification": "m.M"}}
DENSE = {"path": "2_Dense", "type": "x.Dense"}
ELSEWHERE = TRANSFORMER | {"path": "0_Transformer"}
UNKNOWN, BAD = errors.UnknownArchitectureError, errors.BadFileError


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
        (BERT, MODULES | {"pooling": {}}, BAD, "pooling"),
        (BERT, MODULES | {"pooling": MEAN | {"pooling_mode_cls_token": True}}, BAD, "pooling"),
        (BERT, MODULES | {"pooling": {"pooling_mode_weightedmean_tokens": True}}, BAD, "pooling"),
        (BERT, MODULES | {"pooling": MEAN | {SQUARE_ROOT: True}}, BAD, "pooling"),
        (BERT, MODULES | {"pooling": {"pooling_mode": "weightedmean"}}, BAD, "pooling"),
    ],
)
def test_refusals(
    tmp_path: Path, config: Facts, files: Facts, error: type[errors.LoadError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(tmp_path, config, **files)


TEXTS = [
    "A man is eating food.",
    "Hello",
    "Straße, naïve café — 日本語 🙂 and some code: def f(x):\n    return x",
    "The stock market crashed yesterday, and everybody was very sad about it. " * 12,
    " ",
]


@pytest.fixture(scope="module")
def minilm(embedding_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = opened(embedding_model_dir, tmp_path_factory.mktemp("cache"))
    assert isinstance(found, OpenedEmbeddingModel)
    return found


@torch.inference_mode()
def test_the_vectors_are_transformers_mean(minilm: OpenedEmbeddingModel) -> None:
    config = minilm.config
    assert (config.architecture, config.pooling, config.normalize) == ("bert", "mean", True)
    assert (config.hidden_size, config.vocab_size, config.max_input_tokens) == (384, 30522, 256)
    assert minilm.num_parameters == 22_713_728
    assert minilm.weight_bytes == 4 * minilm.num_parameters
    tokenizer = Tokenizer.load(minilm.tokenizer_dir)
    inputs = [torch.tensor(tokenizer.encode(text, add_special_tokens=True)) for text in TEXTS]
    own = AutoTokenizer.from_pretrained(minilm.directory)
    for text, ids in zip(TEXTS, inputs, strict=True):
        assert ids.tolist() == own(text, truncation=False, padding=False)["input_ids"]
    reference = AutoModel.from_pretrained(minilm.directory, dtype=torch.float32).eval()
    theirs = torch.stack([reference(ids[None]).last_hidden_state[0].mean(dim=0) for ids in inputs])
    model = EmbeddingModel(minilm.directory, config, minilm.device, minilm.dtype)
    ours = model.embed(inputs)
    assert cosine_similarity(ours, theirs, dim=-1).min() > 0.9999
    torch.testing.assert_close(ours.norm(dim=-1), torch.ones(len(inputs)))
    alone = torch.cat([model.embed([ids]) for ids in inputs])
    torch.testing.assert_close(ours, alone, rtol=0, atol=2e-6)


def test_settings_of_text_are_refused(embedding_model_dir: Path, tmp_path: Path) -> None:
    for setting, value in (
        *(("kv_memory_bytes", 1000), ("chat_template", "x"), ("max_output_tokens", 5)),
        *(("kv_dtype", "bf16"), ("speculation", "prompt_lookup"), ("quantization", "q8")),
        ("tensor_parallel", 2),
    ):
        with pytest.raises(errors.BadSourceError, match=setting):
            opened(embedding_model_dir, tmp_path, **{setting: value})


def test_what_does_not_fit_is_refused(
    minilm: OpenedEmbeddingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cuda = replace(minilm, device=torch.device("cuda"))
    a_lot = EarlierLoads(device_kind="cpu", memory_correction_bytes=2 * 10**9)
    with pytest.raises(errors.DoesNotFitError, match=r"needs 2\.15 GB"):  # with a largest step
        check_embedding_fits(minilm, 2 * 10**9, a_lot)
    with pytest.raises(
        errors.DoesNotFitError, match=r"needs 2\.09 GB"
    ):  # it ran in the earlier load
        check_embedding_fits(on_cuda, 2 * 10**9, a_lot)
    nothing = EarlierLoads(device_kind="cuda", memory_correction_bytes=0)
    check_embedding_fits(on_cuda, minilm.weight_bytes, nothing)
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 10**9)
    for asked, most in ((100, 100), (1000, 256)):
        found = opened(minilm.directory, tmp_path, max_context_tokens=asked)
        assert found.config.max_input_tokens == most
    with pytest.raises(errors.DoesNotFitError, match=r"1\.00 GB are free"):
        opened(minilm.directory, tmp_path, earlier_loads=a_lot)
