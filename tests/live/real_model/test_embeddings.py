"""A real encoder in the catalogue, as an operator would put it there."""

from __future__ import annotations

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
LIMIT = 256


@pytest.fixture(scope="module")
def client(shared_server: Serve, embedding_model_dir: Path) -> Iterator[openai.OpenAI]:
    """Of a server that has the model: its wheel lies in the server's cache already."""
    create_model(shared_server, name=MINILM, source=SOURCE, revision=REVISION, sha256=SHA256)
    with openai.OpenAI(
        base_url=f"{shared_server.url}/v1", api_key="none", max_retries=0, timeout=WAIT_TIMEOUT_S
    ) as client:
        yield client


def embed(client: openai.OpenAI, texts: list[str]) -> np.ndarray:
    """(num_inputs, dimensions)."""
    return np.array(
        [one.embedding for one in client.embeddings.create(model=MINILM, input=texts).data]
    )


def test_alike_is_near(helexa: Serve, client: openai.OpenAI) -> None:
    vectors = embed(client, ["A man is eating.", "Someone has a meal.", "Shares fell today."])
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.5 > 0.2 > far
    card = client.models.retrieve(MINILM).to_dict()
    assert card["capabilities"] == ["embeddings"]
    assert card["limit"] == {"context": LIMIT, "input": LIMIT, "output": 0}
    for ask in (
        lambda: client.embeddings.create(model=MODEL, input="Hello"),
        lambda: client.completions.create(model=MINILM, prompt="Hello"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask()
        assert refused.value.param == "model"


def test_a_client_that_leaves(helexa: Serve, client: openai.OpenAI) -> None:
    """What would take long is dropped; others are not held up by it meanwhile."""
    embed(client, ["load it"])
    started_s = time.monotonic()
    embed(client, ["word " * 250] * 50)
    tenth_s = time.monotonic() - started_s
    with pytest.raises(openai.APITimeoutError):
        embed(client.with_options(timeout=1.0), ["word " * 250] * 500)

    def is_free() -> bool:
        replica = helexa.replica(MINILM)
        return replica is not None and replica["in_flight"] == replica["queue_depth"] == 0

    started_s = time.monotonic()
    wait_until(is_free, "the request is dropped")
    assert time.monotonic() - started_s < 5 * tenth_s + 10, "long before its end"
