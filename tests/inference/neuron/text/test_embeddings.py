"""Embedding requests in the neuron: tokenized, checked, handed over and answered."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.requests.request_table import sequence_id
from inference.neuron.text.answers import EmbeddingAnswer, cosines
from inference.neuron.text.inputs import prepare_embedding, prepare_scoring
from inference.neuron.text.model_text import ModelText
from inference.protocol.engine import EmbedSequences, SequenceFailed, SequencesEmbedded
from inference.protocol.events import Accepted, Embedded, Failed, Failure, Usage
from inference.protocol.generation import (
    EmbeddingRequest,
    GenerationRequest,
    PairsInput,
    Request,
    ScoreRequest,
    TextInput,
    TokenCountRequest,
    TokensInput,
)
from inference.text.errors import TokenizerFilesError
from tests.cases import each_case
from tests.inference.neuron.model_texts import Started, a_chat, model_text

LIMIT = 20
NAME = sequence_id("r", 0)
ANY = {"is_matryoshka": True}
SOME = {"is_matryoshka": True, "matryoshka_dimensions": [2, 4]}


def text_of(directory: Path, **fields: Any) -> ModelText:
    made = {"kind": "embedding", "context_tokens": LIMIT, "vocab_size": 350}
    return model_text(directory, **(made | {"embedding_dimensions": 8} | fields))


def request(*texts: str, **fields: Any) -> EmbeddingRequest:
    return EmbeddingRequest(model="m", input=TextInput(texts=list(texts)), **fields)


def tokens(*prompts: list[int], **fields: Any) -> EmbeddingRequest:
    return EmbeddingRequest(model="m", input=TokensInput(prompts=list(prompts)), **fields)


TOO_LONG = tokens([5], [5] * (LIMIT + 1))


def scoring(*seconds: str, first: str = "The", **more: Any) -> ScoreRequest:
    pairs = PairsInput(firsts=[first], seconds=list(seconds), **more)
    return ScoreRequest(model="m", input=pairs)


@pytest.fixture
def text(sentencepiece_dir: Path) -> ModelText:
    """Its tokenizer puts a bos before each text, and there is no chat template."""
    return text_of(sentencepiece_dir)


def refusal(given: EmbeddingRequest | ScoreRequest, text: ModelText) -> Failure:
    prepare: Any = prepare_scoring if isinstance(given, ScoreRequest) else prepare_embedding
    with pytest.raises(RequestRefusedError) as refused:
        prepare(given, text)
    return refused.value.failure


def test_texts_get_special_tokens_and_are_cut_on_demand(text: ModelText) -> None:
    assert prepare_embedding(tokens([5] * LIMIT, [7]), text) == [[5] * LIMIT, [7]]
    long = "Paris capital " * LIMIT
    short, whole = (text.tokenizer.encode(one, add_special_tokens=True) for one in ("Paris", long))
    assert short[0] == whole[0] == 1
    asked = request(long, "Paris", cuts_inputs=True)
    assert prepare_embedding(asked, text) == [whole[:LIMIT], short], "the bos is one of them"
    fewer = msgspec.structs.replace(asked, max_input_tokens=5)
    assert [len(one) for one in prepare_embedding(fewer, text)] == [5, min(5, len(short))]
    ids = tokens([7] * (LIMIT + 3), cuts_inputs=True)
    assert prepare_embedding(ids, text) == [[7] * LIMIT]
    more = msgspec.structs.replace(asked, max_input_tokens=LIMIT + 1)
    assert refusal(more, text)


@each_case(
    ("declared", "given", "code", "param", "words"),
    [
        ({}, TOO_LONG, "context_length_exceeded", None, ["20", "21", "input 1"]),
        ({}, tokens([5], [5, -1, 5]), "bad_token_id", None, ["-1"]),
        ({}, tokens([5], [5, 350, 5]), "bad_token_id", None, ["350"]),
        ({}, tokens([5], []), "empty_prompt", None, []),
        ({}, tokens([5], dimensions=4), "unsupported_parameter", "dimensions", []),
        ({}, tokens([5], dimensions=9), "invalid_value", "dimensions", []),
        (ANY, tokens([5], dimensions=9), "invalid_value", "dimensions", []),
        (SOME, tokens([5], dimensions=3), "invalid_value", "dimensions", []),
    ],
)
def test_inputs_and_dimensions_that_are_refused(
    sentencepiece_dir: Path, declared: Any, given: Any, code: str, param: str | None, words: Any
) -> None:
    failure = refusal(given, text_of(sentencepiece_dir, **declared))
    assert failure.code == code and param in (failure.param, None)
    assert all(word in failure.message for word in words)
    for model, dimensions in (({}, 8), (ANY, 3), (SOME, 4), (SOME, 8)):
        asked = tokens([5], dimensions=dimensions)
        assert prepare_embedding(asked, text_of(sentencepiece_dir, **model)) == [[5]]


@each_case("decoder", [None, {"type": "BPEDecoder", "suffix": "</w>"}])
@each_case("kind", ["embedding", "reranker", "generation"])
def test_an_encoder_needs_no_decoder(
    sentencepiece_dir: Path, tmp_path: Path, kind: str, decoder: dict[str, str] | None
) -> None:
    directory = tmp_path / "encoder"
    shutil.copytree(sentencepiece_dir, directory)
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": decoder}))
    if kind == "generation":
        with pytest.raises(TokenizerFilesError, match="decoder"):
            text_of(directory, kind=kind)
        return
    same = prepare_embedding(request("The capital"), text_of(sentencepiece_dir))
    assert prepare_embedding(request("The capital"), text_of(directory, kind=kind)) == same


def test_a_request_is_one_sequence_that_ends_or_is_cancelled(text: ModelText) -> None:
    started = Started(text, tokens([5, 6], [7], dimensions=8))
    sent = {"prompts": [[5, 6], [7]], "dimensions": 8, "account": "anonymous"}
    assert started.engine.sent == [EmbedSequences(sequence_id=NAME, is_anonymous=True, **sent)]
    assert started.events == [Accepted(request_id="r", prompt_tokens=3)]
    answer = EmbeddingAnswer("r", num_prompt_tokens=3)
    assert not answer.has_begun and answer.usage() is None
    answer.feed(0, SequencesEmbedded(sequence_id=NAME, vectors=[]))
    assert answer.has_begun
    applied = started.table.apply([SequencesEmbedded(sequence_id=NAME, vectors=[b"a", b"b"])])
    usage = Usage(prompt_tokens=3, completion_tokens=0)
    ((_, embedded),) = applied.events
    assert embedded == Embedded(request_id="r", vectors=[b"a", b"b"], usage=usage)
    assert not applied.ended_early
    assert started.table.cancel("r") == []

    started = Started(text, tokens([5]))
    assert started.table.cancel("r") == []
    assert started.engine.cancelled == [NAME]
    failed = SequenceFailed(sequence_id=NAME, code="queue_full", message="full")
    ((_, event),) = started.table.apply([failed]).events
    assert isinstance(event, Failed) and event.failure.code == "queue_full"


def test_pairs_are_scored_or_compared(text: ModelText, sentencepiece_dir: Path) -> None:
    reranker = text_of(sentencepiece_dir, kind="reranker", embedding_dimensions=None)
    first, second = prepare_scoring(scoring("Paris", "capital"), reranker)
    assert len(first) > 2 < len(second) and first != second
    long = "Paris " * LIMIT
    failure = refusal(scoring("Paris", long), reranker)
    assert failure.code == "context_length_exceeded" and "input 1" in failure.message
    (cut,) = prepare_scoring(scoring(long, max_second_tokens=3), reranker)
    assert len(cut) <= LIMIT, "its document may be cut"
    assert len(prepare_scoring(scoring("Paris", "capital"), text)) == 3, "the first text once"
    vectors = [struct.pack("<2f", *numbers) for numbers in ((1, 0), (0, 2), (3, 3), (0, 0))]
    scores = [struct.unpack("<f", one)[0] for one in cosines(vectors, 1)]
    assert scores == pytest.approx([0.0, 2**-0.5, 0.0])
    pairs = cosines([*vectors[:2], vectors[1], vectors[1]], 2)
    assert [struct.unpack("<f", one)[0] for one in pairs] == pytest.approx([0.0, 1.0])


@each_case(
    ("kind", "asked"),
    [
        ("embedding", GenerationRequest(model="m", input=a_chat())),
        ("embedding", TokenCountRequest(model="m", input=a_chat())),
        ("generation", tokens([5])),
        ("generation", scoring("a")),
        ("reranker", request("a")),
        ("reranker", GenerationRequest(model="m", input=a_chat())),
    ],
)
def test_the_wrong_kind_of_model(kind: str, asked: Request, text: ModelText) -> None:
    report = msgspec.structs.replace(text.report, kind=kind)
    started = Started(dataclasses.replace(text, report=report), asked)
    (event,) = started.events
    assert isinstance(event, Failed) and not started.engine.sent
    assert (event.failure.code, event.failure.param) == ("invalid_value", "model")
