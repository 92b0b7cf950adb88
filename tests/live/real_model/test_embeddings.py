"""The openai SDK's embeddings, from a real encoder behind the real server.

The model is in the catalogue as an operator would put it there, and the first request loads it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

from tests.embedding_model import REVISION, SHA256, SOURCE
from tests.live.catalogue import create_model
from tests.live.serving import MODEL, WAIT_TIMEOUT_S, Serve, wait_until

MINILM = "all-minilm-l6-v2"
DIMENSIONS = 384
LIMIT = 256


@pytest.fixture(scope="module")
def minilm(shared_server: Serve, embedding_model_dir: Path) -> str:
    """Adds the model to the catalogue; its wheel lies in the server's cache already."""
    create_model(shared_server, name=MINILM, source=SOURCE, revision=REVISION, sha256=SHA256)
    return MINILM


@pytest.fixture
def client(helexa: Serve) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{helexa.url}/v1", api_key="none", max_retries=0, timeout=WAIT_TIMEOUT_S
    ) as client:
        yield client


def embed(client: openai.OpenAI, **fields: object) -> np.ndarray:
    """(num_inputs, dimensions). The SDK asks for base64 unless a caller names a format."""
    answer = client.embeddings.create(model=MINILM, **fields)  # type: ignore[call-overload]
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data])


def test_alike_is_near(client: openai.OpenAI, minilm: str) -> None:
    vectors = embed(client, input=["A man is eating.", "Someone has a meal.", "Shares fell today."])
    assert vectors.shape == (3, DIMENSIONS)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.5 > 0.2 > far


def test_both_encodings_are_the_same_numbers(client: openai.OpenAI, minilm: str) -> None:
    answers = {
        encoding: client.embeddings.create(model=minilm, input="Hello", encoding_format=encoding)
        for encoding in ("float", "base64")
    }
    as_text: object = answers["base64"].data[0].embedding
    assert isinstance(as_text, str), "the SDK hands on what it was asked for"
    as_floats = np.array(answers["float"].data[0].embedding, dtype=np.float32)
    assert np.array_equal(np.frombuffer(base64.b64decode(as_text), np.float32), as_floats)


def test_usage_and_token_ids(client: openai.OpenAI, minilm: str) -> None:
    """Text is put between [CLS] and [SEP]; token ids are taken as they are."""
    by_text = client.embeddings.create(model=minilm, input="Hello")
    assert (by_text.usage.prompt_tokens, by_text.usage.total_tokens) == (3, 3)
    by_ids = embed(client, input=[101, 7592, 102])
    assert np.allclose(by_text.data[0].embedding, by_ids[0], atol=1e-6)
    several = embed(client, input=[[101, 7592, 102], [101, 102]])
    assert np.allclose(several[0], by_ids[0], atol=1e-5)


def test_too_long_is_refused_with_both_numbers(client: openai.OpenAI, minilm: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        embed(client, input=["short", "word " * 300])
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input"
    for words in (str(LIMIT), "302", "input 1"):
        assert words in refused.value.message


def test_dimensions(client: openai.OpenAI, minilm: str) -> None:
    """The model declares no shorter vectors, so only its own number is honoured."""
    assert embed(client, input="Hello", dimensions=DIMENSIONS).shape == (1, DIMENSIONS)
    for dimensions in (DIMENSIONS // 2, DIMENSIONS + 1):
        with pytest.raises(openai.BadRequestError) as refused:
            embed(client, input="Hello", dimensions=dimensions)
        assert refused.value.param == "dimensions"


def test_the_wrong_kind_of_model(client: openai.OpenAI, minilm: str) -> None:
    embed(client, input="load it")
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=MODEL, input="Hello")
    assert refused.value.param == "model"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=minilm, messages=[{"role": "user", "content": "Hi"}])
    assert refused.value.param == "model"


def test_what_the_fleet_reports_of_it(helexa: Serve, client: openai.OpenAI, minilm: str) -> None:
    embed(client, input="load it")
    assert helexa.reported_replica(minilm)["status"] == "ready"
    card = client.models.retrieve(minilm).to_dict()
    assert card["capabilities"] == ["embeddings"]
    assert card["limit"] == {"context": LIMIT, "input": LIMIT, "output": 0}


@pytest.mark.slow
def test_a_client_that_leaves(helexa: Serve, client: openai.OpenAI, minilm: str) -> None:
    """What would take long is dropped; others are not held up by it meanwhile."""
    embed(client, input="load it")
    started_s = time.monotonic()
    embed(client, input=["word " * 250] * 50)
    tenth_s = time.monotonic() - started_s
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1.0).embeddings.create(
            model=minilm, input=["word " * 250] * 500
        )

    def is_free() -> bool:
        replica = helexa.replica(minilm)
        return replica is not None and replica["in_flight"] == replica["queue_depth"] == 0

    started_s = time.monotonic()
    wait_until(is_free, "the request is dropped")
    assert time.monotonic() - started_s < 5 * tenth_s + 10, "long before its end"
