"""From a directory to what transformers gives: scores of pairs, and vectors of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from inference.engine.embedding_engine import EmbeddingEngine
from inference.engine.embedding_load import embedding_report, load_embedding_engine
from inference.engine.load.load_engine import load_engine
from inference.loading.embedding_loader import OpenedEmbeddingModel
from inference.loading.loader import open_model
from inference.loading.tokenizer_files import separator_of_pairs
from inference.models.embedding import second_text
from inference.neuron.text.inputs import prepare_scoring
from inference.neuron.text.model_text import load_text
from inference.protocol.engine import EmbedSequences, SequencesEmbedded
from inference.protocol.generation import PairsInput, ScoreRequest
from tests.cases import each_case
from tests.inference.engine.asking import cpu_spec
from tests.sandbox_workers import WORKERS

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "what", "is", "red", "blood", "grass", "a", "rose"]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "num_labels": 1,
}
PAIRS = [("what is red", "blood"), ("what is red", "a rose is a rose"), ("what is red", "grass")]


def _save(directory: Path, model_type: str, **fields: Any) -> Path:
    torch.manual_seed(11)
    sizes = SIZES | fields
    if model_type == "qwen3":
        sizes |= {"num_key_value_heads": 2, "head_dim": 8}
    config = AutoConfig.for_model(model_type, **sizes)
    model = AutoModelForSequenceClassification.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory)
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(WORDS[:3])
    if model_type != "qwen3":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1"
            if model_type == "bert"
            else "[CLS] $A [SEP] $B [SEP]",
            special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@torch.inference_mode()
def _expected(directory: Path) -> list[float]:
    """Each pair by itself, token types as the tokenizer has them."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    model.eval()
    numbers = []
    for pair in PAIRS:
        encoded = tokenizer.encode(*pair)
        inputs = {"input_ids": torch.tensor([encoded.ids])}
        if model.config.model_type == "bert":
            inputs["token_type_ids"] = torch.tensor([encoded.type_ids])
        numbers.append(float(model(**inputs).logits[0, 0].sigmoid()))
    return numbers


def _vectors(engine: EmbeddingEngine, command: EmbedSequences) -> list[bytes]:
    engine.submit(command)
    found: list[bytes] = []
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequencesEmbedded), output
            found = output.vectors
    return found


@torch.inference_mode()
def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    """Of a decoder without the head that generates: it pools by the last token."""
    torch.manual_seed(9)
    sizes = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "is_matryoshka": True}
    reference = AutoModel.from_config(AutoConfig.for_model("qwen3", **sizes)).eval()
    reference.save_pretrained(tmp_path)
    words = {word: number for number, word in enumerate(WORDS)}
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    loaded = load_engine(cpu_spec(tmp_path), tmp_path / "data", lambda _: None)
    report, engine = loaded.report, loaded.engine
    assert isinstance(engine, EmbeddingEngine)
    assert (report.kind, report.architecture, report.is_matryoshka) == ("embedding", "qwen3", True)
    assert (report.embedding_dimensions, report.context_tokens) == (32, 32)
    assert report.estimated_bytes == report.weight_bytes
    assert report.actual_bytes == report.weight_bytes + report.memory_correction_bytes > 0
    prompts = [[5, 6, 7], [9], [3] * 20]
    last = [reference(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in prompts]
    for dimensions in (None, 8):
        command = EmbedSequences(sequence_id="it", prompts=prompts, dimensions=dimensions)
        found = [np.frombuffer(vector, "<f4") for vector in _vectors(engine, command)]
        expected = torch.nn.functional.normalize(torch.stack(last)[:, :dimensions], dim=-1)
        assert np.allclose(np.stack(found), expected, atol=1e-5)


@each_case("model_type", ["bert", "xlm-roberta", "modernbert", "qwen3"])
def test_scores_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    spec = cpu_spec(_save(tmp_path, model_type))
    opened = open_model(spec, tmp_path / "cache", lambda progress: None)
    assert isinstance(opened, OpenedEmbeddingModel)
    engine, model = load_embedding_engine(spec, opened, lambda progress: None)
    report = embedding_report(opened, model, 0.0)
    assert (report.kind, report.embedding_dimensions) == ("reranker", None)
    text = load_text(spec, report, WORKERS)
    assert text.capabilities == ["rerank"]
    pairs = PairsInput(firsts=[PAIRS[0][0]], seconds=[second for _, second in PAIRS])
    prompts = prepare_scoring(ScoreRequest(model="m", input=pairs), text)
    found = _vectors(engine, EmbedSequences(sequence_id="s", prompts=prompts))
    scores = [float(np.frombuffer(vector, "<f4")[0]) for vector in found]
    assert scores == pytest.approx(_expected(tmp_path), abs=1e-5)
    assert len(set(scores)) == len(PAIRS)
    # Looked for where tokens have types.
    separators = {"bert": WORDS.index("[SEP]"), "xlm-roberta": None}
    if model_type in separators:
        assert separator_of_pairs(tmp_path) == separators[model_type]


def test_which_tokens_are_the_second_texts() -> None:
    token_ids = torch.tensor([[1, 5, 2, 6, 7, 2], [1, 2, 2, 0, 0, 0]])
    is_token = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    expected = [[0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0]]
    assert second_text(token_ids, is_token, 2).tolist() == expected
