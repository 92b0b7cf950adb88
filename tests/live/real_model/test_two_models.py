"""Two real models on a host that holds one of them: a language model and an embedding model, or two
language models. Each is loaded when a client asks for it, and the other one leaves for it. The
host's size is simulated, so that any machine is too small; the engines are real.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.embedding_model import REVISION, SHA256, SOURCE
from tests.live.catalogue import create_model
from tests.live.conftest import with_caches
from tests.live.scripted.simulated_devices import device_environment
from tests.live.serving import WAIT_TIMEOUT_S, Serve, wait_until

HOST_BYTES = 2_000_000_000
KV_BYTES = 1_300_000_000
"""The KV memory of the language model: with its weights and its process it needs most of the
host."""
EXPECTED_MB = {"writer": 1_700, "reader": 600}
"""The size that each model is taken to have until a load has shown it; both are more than the host
has."""
HOST_OF_TWO_BYTES, KV_OF_TWO_BYTES, EXPECTED_OF_TWO_MB = 4_800_000_000, 2_500_000_000, 3_000
"""The same of two language models: Gemma with its cache needs some 4.1 GB, SmolLM2 3 GB."""
LOOK_EVERY_S = 0.2


@pytest.fixture
def small_host(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    model_cache_dir: Path,
    native_cache_dir: Path,
) -> Iterator[Serve]:
    """A server whose host has ``HOST_BYTES``, or the test's parameter."""
    host = {"kind": "cpu", "memory_bytes": getattr(request, "param", HOST_BYTES), "name": "small"}
    devices = tmp_path / "devices.json"
    devices.write_text(json.dumps({"devices": [host]}))
    data_dir = with_caches(tmp_path / "var", model_cache_dir, native_cache_dir)
    serve = Serve(data_dir, "--no-model", **device_environment(devices))
    try:
        serve.wait_ready()
        yield serve
    finally:
        serve.end()


class Watch:
    """Looks at the replicas all the while."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._ended = threading.Event()
        self.least_free_bytes = HOST_BYTES
        self.together: set[frozenset[str]] = set()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            try:
                neurons = self._serve.health()["neurons"]
            except (httpx.HTTPError, ValueError):
                continue
            for neuron in neurons:
                ready = [one["model"] for one in neuron["replicas"] if one["status"] == "ready"]
                self.together.add(frozenset(ready))
                free = [device["free_memory_bytes"] for device in neuron["devices"]]
                self.least_free_bytes = min(self.least_free_bytes, *free)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.slow
def test_two_models_have_time_slices_on_a_host_that_holds_one(
    small_host: Serve, default_gguf: Path, embedding_model_dir: Path
) -> None:
    """The reader is loaded, leaves for the writer, and comes back for it."""
    serve = small_host
    create_model(
        serve,
        name="writer",
        source=f"path:{default_gguf}",
        kv_memory_bytes=KV_BYTES,
        vram_mb=EXPECTED_MB["writer"],
    )
    create_model(
        serve,
        name="reader",
        source=SOURCE,
        revision=REVISION,
        sha256=SHA256,
        vram_mb=EXPECTED_MB["reader"],
    )
    watch = Watch(serve)
    try:
        for asked, other in (("reader", "writer"), ("writer", "reader"), ("reader", "writer")):
            if asked == "writer":
                assert "Paris" in serve.answer(model="writer"), serve.describe()
            else:
                assert len(embedded(serve)) == 384, serve.describe()
            assert serve.reported_replica(asked)["status"] == "ready"
            wait_until(lambda other=other: not is_ready(serve, other), "the other one has left")
    finally:
        watch.end()
    assert frozenset({"reader", "writer"}) not in watch.together
    # What the one that is loaded was promised is not free for the other.
    assert watch.least_free_bytes <= HOST_BYTES - KV_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("small_host", [HOST_OF_TWO_BYTES], indirect=True)
def test_two_language_models_take_turns(
    small_host: Serve, default_gguf: Path, gemma_gguf: Path
) -> None:
    """Each is loaded for its clients in place of the other, and answers as it did before: long
    answers of one family after the other's, token for token."""
    serve = small_host
    files = {"smol": default_gguf, "gemma": gemma_gguf}
    for name, file in files.items():
        create_model(
            serve,
            name=name,
            source=f"path:{file}",
            kv_memory_bytes=KV_OF_TWO_BYTES,
            vram_mb=EXPECTED_OF_TWO_MB,
        )
    first: dict[str, str] = {}
    for name in ("smol", "gemma", "smol", "gemma"):
        answer = completed(serve, name)
        assert "Paris" in answer, serve.describe()
        assert first.setdefault(name, answer) == answer, serve.describe()
        (other,) = files.keys() - {name}
        wait_until(lambda other=other: not is_ready(serve, other), "the other one has left")


def is_ready(serve: Serve, model: str) -> bool:
    """One that sleeps, or has left, is not."""
    replica = serve.replica(model)
    return replica is not None and replica["status"] == "ready"


def completed(serve: Serve, model: str) -> str:
    """Returns the most probable 200 tokens. Gemma's file is a base model's: it does not chat."""
    response = httpx.post(
        f"{serve.url}/v1/completions",
        json={
            "model": model,
            "prompt": "The Eiffel Tower is in the city of",
            "max_tokens": 200,
            "temperature": 0,
        },
        timeout=WAIT_TIMEOUT_S,
    )
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def embedded(serve: Serve) -> list[float]:
    response = httpx.post(
        f"{serve.url}/v1/embeddings",
        json={"model": "reader", "input": "Hello"},
        timeout=WAIT_TIMEOUT_S,
    )
    assert response.status_code == 200, response.text
    vector: list[float] = response.json()["data"][0]["embedding"]
    return vector
