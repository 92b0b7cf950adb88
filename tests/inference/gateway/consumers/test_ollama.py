"""Ollama's API through its own SDK, and what only a client by hand can see."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import ollama
import pytest
import pytest_asyncio

from inference.gateway.consumers import ollama as ollama_pull
from inference.gateway.server.paths import OLLAMA_PATHS
from inference.protocol.generation import GenerationRequest, Submit, TokenCountRequest
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire.ollama.models import UNKNOWN_ARCHITECTURE, PullState
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import breaks, counts
from tests.inference.gateway.conftest import ENTRY, OPERATOR, FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, embeds, failing
from tests.inference.reports import load_report

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest_asyncio.fixture
async def sdk(server_url: str) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=server_url) as client:
        yield client


async def test_ollamas_sdk(
    sdk: ollama.AsyncClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = itertools.count(1000, 10)
    with monkeypatch.context() as patch:
        patch.setattr(ollama_pull, "time", SimpleNamespace(time=lambda: next(now_s)))
        whole = await sdk.chat("tiny", QUESTION, options={"num_predict": 9}, keep_alive="5m")
    assert (whole.message.content, whole.done_reason) == ("The capital is Paris.", "stop")
    assert (whole.total_duration or 0) > (whole.load_duration or 0) >= 10 * 10**9
    request = neuron.frames[-1].request  # type: ignore[union-attr]
    assert isinstance(request, GenerationRequest)
    assert (request.sampling.max_tokens, request.ends_at_context) == (9, True)
    stream = await sdk.generate("tiny", "Capital?", stream=True, raw=True)
    assert "".join([part.response or "" async for part in stream]) == "The capital is Paris."
    neuron.script = failing
    with pytest.raises(ollama.ResponseError, match="8192") as refused:
        await sdk.chat("tiny", QUESTION)
    assert refused.value.status_code == 400
    neuron.script = breaks
    with pytest.raises(ollama.ResponseError, match="crashed"):
        _ = [part async for part in await sdk.chat("tiny", QUESTION, stream=True)]
    # The sdk embeds: vectors of length 1, unlike the model's.
    neuron.script = embeds(packed(0.5, -1.0))
    assert (await sdk.embeddings("tiny", "one")).embedding == [0.5, -1.0]
    for numbers in ([0.5, -1.0], [0.0, 0.0], [3e38, 3e38], [1e-30, 0.0]):
        neuron.script = embeds(packed(*numbers))
        made = await sdk.embed("tiny", "one")
        ((first, second),) = made.embeddings
        assert np.hypot(first, second) == pytest.approx(float(any(n > 1e-12 for n in numbers)))
        assert numbers != [0.5, -1.0] or first == pytest.approx(0.2**0.5)
        assert made.prompt_eval_count == 6


def packed(*numbers: float) -> bytes:
    return np.array(numbers, dtype="<f4").tobytes()


async def test_lists(sdk: ollama.AsyncClient, neuron: FakeNeuron, client: AsgiClient) -> None:
    assert [model.model for model in (await sdk.list()).models] == ["tiny", "gpt-4o"]
    assert [model.name for model in (await sdk.ps()).models] == ["tiny"]
    assert (await sdk.show("gpt-4o")).capabilities == ["completion"]
    shown = await sdk.show("tiny")
    assert (shown.modelinfo or {}).get("general.architecture") == "unknown"
    for ask, words, status in (
        (sdk.show("nothing"), "does not exist", 404),
        (sdk.delete("tiny"), "operator's", 501),
        (sdk.copy("tiny", "other"), "operator's", 501),
        (sdk.pull("tiny"), "fleet:write", 403),
    ):
        with pytest.raises(ollama.ResponseError, match=words) as refused:
            await ask
        assert refused.value.status_code == status
    # Asking nothing loads the model.
    neuron.script = counts
    for path in ("/api/chat", "/api/generate"):
        answer = await client.post(path, {"model": "tiny"})
        assert (answer.json["done"], answer.json["done_reason"]) == (True, "load")
        (*_, submit) = neuron.frames
        assert isinstance(submit, Submit) and isinstance(submit.request, TokenCountRequest)
    for path in ("/api/me", "/api/chats", "/api/tags/", "/api/chat/x"):
        assert (await client.get(path)).status == 418
    for path in OLLAMA_PATHS:
        assert (await client.open("PATCH", path, headers=OPERATOR).finish()).status == 405


@pytest.mark.parametrize(
    "case",
    [
        (ReplicaStatus.READY, "cuda:0", 10**8, [10**8]),
        (ReplicaStatus.READY, "cpu", 10**8, [0]),
        (ReplicaStatus.ASLEEP, "cuda:0", 10**8, []),
        (ReplicaStatus.FAILED, None, 7000, []),
        (None, None, 7000, []),
    ],
)
async def test_sizes_are_numbers_whatever_the_models_state(
    sdk: ollama.AsyncClient, catalogue: FakeCatalogue, neuron: FakeNeuron, case: Any
) -> None:
    neuron.status, device, size, gpu_bytes = case
    catalogue.listed = [replace(ENTRY, weight_bytes=7000, file="tiny.Q4_K_M.gguf")]
    neuron.report = device and load_report(device=device, weight_bytes=10**8)
    await neuron.beat()
    (listed, _alias) = (await sdk.list()).models
    assert listed.details is not None
    assert (listed.size, listed.details.format) == (size, "gguf")
    assert [one.size_vram for one in (await sdk.ps()).models] == gpu_bytes


async def test_a_model_that_was_never_loaded_is_shown_by_its_file(
    sdk: ollama.AsyncClient, catalogue: FakeCatalogue, tmp_path: Path
) -> None:
    path, directory = tmp_path / "blob", tmp_path / "hub"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    directory.mkdir()
    config = {"model_type": "qwen3", "max_position_embeddings": 512}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").touch()

    async def shown(source: str) -> dict[str, Any]:
        catalogue.listed = [replace(ENTRY, source=source, file=None)]
        shown = await sdk.show("tiny")
        assert shown.details is not None
        return {**(shown.modelinfo or {})}

    read = await shown(f"path:{path}")
    assert read["general.architecture"] == "llama"
    assert (read["llama.context_length"], read["general.parameter_count"]) == (4096, 256)
    read = await shown(f"path:{directory}")
    assert (read["general.architecture"], read["qwen3.context_length"]) == ("qwen3", 512)
    assert "general.parameter_count" not in read
    path.write_bytes(b"GGUF, and nothing that follows it")
    for source in (f"path:{path}", f"path:{path}.none", "huggingface:org/name", "pypi:no-wheel"):
        assert await shown(source) == {"general.architecture": UNKNOWN_ARCHITECTURE}, source


def pull(status: str, **changes: Any) -> PullState:
    return PullState(**{"id": "7", "where": "beast", "status": status} | changes)


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama_pull, "LOOK_EVERY_S", 0.0)


@pytest.fixture
def operator(server_url: str) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=server_url, headers=OPERATOR)


async def test_pulls_and_hang_ups(
    operator: ollama.AsyncClient, catalogue: FakeCatalogue, client: AsgiClient, neuron: FakeNeuron
) -> None:
    running = [pull("running", bytes_done=done, bytes_total=4) for done in (1, 4)]
    catalogue.pulls = [pull("pending"), *running, pull("succeeded", bytes_total=4)]
    lines = [line async for line in await operator.pull("hf.co/org/name:Q4_K_M", stream=True)]
    assert [(line.completed, line.total) for line in lines[1:-1]] == [(1, 4), (4, 4)]
    assert (lines[0].status, lines[-1].status) == ("pulling to beast", "success")
    assert lines[0].total is lines[-1].total is None
    catalogue.pulls = [pull("pending"), pull("succeeded")]
    assert (await operator.pull("gpt-4o:latest")).status == "success"
    (first, actor), (second, _) = catalogue.pulled
    assert (first.source, first.file, second.model) == ("huggingface:org/name", "Q4_K_M", "gpt-4o")
    assert str(actor) == "key:shared"
    assert catalogue.pulls_offered == ["hf.co/org/name:Q4_K_M"], "what has a name is offered"
    # One that another client gave up is begun anew.
    catalogue.pulls = [pull("running"), pull("cancelled"), pull("pending"), pull("succeeded")]
    assert (await operator.pull("hf.co/org/name")).status == "success"
    assert len(catalogue.pulled) == 4
    # A hang up ends the download that it began and no other.
    for number, is_ours in (("joined", False), ("begun", True)):
        catalogue.pulls = 2 * [pull("running", id=number, bytes_total=4, is_ours=is_ours)]
        exchange = client.open("POST", "/api/pull", {"model": "hf.co/a/b"}, headers=OPERATOR)
        await exchange.until(b"pulling")
        exchange.leave()
        await exchange.finish()
    assert await asyncio.wait_for(catalogue.pulls_cancelled.get(), 60) == "begun"
    assert catalogue.pulls_cancelled.empty()
    assert len(catalogue.pulls_offered) == 2


FAILED = pull("failed", failure_code="disk_full", failure_message="4 GB more are needed")
OURS = [pull("running", is_ours=True), pull("cancelled", is_ours=True)]


@each_case(
    "case",
    [
        (OURS, "hf.co/org/name", {}, "cancelled"),
        ([FAILED], "tiny", {}, "4 GB more"),
        ([pull("running"), FAILED], "tiny", {"stream": True}, "4 GB more"),
        ([], "llama3", {}, "does not exist"),
        ([], "tiny", {"insecure": True}, "insecure"),
    ],
    ids=str,
)
async def test_a_pull_that_fails_names_the_reason(
    operator: ollama.AsyncClient, catalogue: FakeCatalogue, case: Any
) -> None:
    pulls, name, more, words = case
    catalogue.pulls = [*pulls]
    with pytest.raises(ollama.ResponseError, match=words) as refused:
        answer: Any = await operator.pull(name, **more)
        _ = [line async for line in answer]
    assert pulls != [FAILED] or refused.value.status_code == 503
