"""Upstreams that are real servers: a second helexa by each dialect that it speaks, and servers of
others where they are installed, in this environment or that of an interpreter which is named:

    LITELLM_PYTHON=VENV/bin/python LLAMA_CPP_PYTHON=VENV/bin/python manage.py test -m slow …
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from django.conf import settings

from benchmarks.gateway.processes import Processes
from benchmarks.ports import free_port
from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import Task
from fleet.upstreams.entry import UpstreamEntry
from fleet.upstreams.secret import seal
from helexa_site.config import Config
from inference.gateway.gateway import Gateway
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import FakeCatalogue, Rig, client_of
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.upstreams.forwarding import CHAT, PATH, SECRET

MOCKED = "This is the mock of another gateway."


@dataclass(slots=True, kw_only=True)
class Near(Rig):
    """The gateway under test, whose only model a real upstream serves."""

    def serve(self, model: str, *, task: Task = "text", **upstream: Any) -> None:
        sealed = seal(SECRET, settings.SECRET_KEY)
        row = UpstreamEntry(name="real", sealed_secret=sealed, **upstream)
        entry = CatalogueEntry(name="far", source=f"upstream:real/{model}", task=task, upstream=row)
        self.catalogue.listed = [entry]

    async def chat(self, **fields: Any) -> Any:
        return await self.client.post(PATH, {**CHAT, **fields})


@pytest_asyncio.fixture
async def near(config: Config) -> AsyncIterator[Near]:
    catalogue, directory, ledger = FakeCatalogue(), FakeDirectory(), FakeLedger()
    changed = replace(config, request_timeout_s=300)
    gateway = Gateway(changed, catalogue, directory=directory, make_ledger=lambda _id: ledger)
    parts = {"catalogue": catalogue, "directory": directory, "ledger": ledger}
    yield Near(client=client_of(gateway), gateway=gateway, **parts)  # type: ignore[arg-type]
    await gateway.drain(0)


@pytest.mark.parametrize(
    ("dialect", "path"), [("openai", "/v1"), ("anthropic", ""), ("ollama", "")]
)
async def test_a_second_helexa(
    near: Near, server_url: str, ledger: FakeLedger, dialect: str, path: str
) -> None:
    near.serve("tiny", url=server_url + path, dialect=dialect)
    for streams in (False, True):
        assert text_of_any(await near.chat(stream=streams)) == "The capital is Paris."
    for path_of_other in ("/v1/messages", "/api/chat"):
        body = {**CHAT, "max_tokens": 9} if "v1" in path_of_other else {**CHAT, "stream": False}
        other = await near.client.post(path_of_other, body)
        assert "The capital is Paris." in other.body.decode()
    for here, there in zip(near.ledger.settled, ledger.settled, strict=True):
        assert here.neuron == "upstream:real"
        assert here.prompt_tokens == there.prompt_tokens > 0
        assert here.completion_tokens == there.completion_tokens > 0
    near.serve("missing", url=server_url + path, dialect=dialect)
    assert (await near.chat()).status == 502


def text_of_any(answer: Exchange) -> str:
    """Streamed or not."""
    assert answer.status == 200, answer.body
    if answer.body.startswith(b"{"):
        return str(answer.json["choices"][0]["message"]["content"])
    deltas = [one["choices"][0]["delta"] for one in answer.chunks[:-1]]
    return "".join(delta.get("content") or "" for delta in deltas)


@contextmanager
def running(module: str, variable: str, command: list[str], folder: Path) -> Iterator[int]:
    """A server of that module at a port, which stands in ``command`` as ``PORT``."""
    python = os.environ.get(variable, sys.executable)
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if subprocess.run([python, "-c", check], check=False).returncode:
        pytest.skip(f"{module} is not installed; {variable} may name an interpreter that has it")
    port = free_port()
    words = [str(Path(python).parent / command[0]), *command[1:]]
    with Processes(folder) as processes:
        env = {"PATH": os.environ["PATH"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        env["LITELLM_MASTER_KEY"] = SECRET
        words = [word.replace("PORT", str(port)) for word in words]
        processes.start(module, words, env, port=port).wait_until_listening()
        yield port


@pytest.mark.slow
async def test_litellm(near: Near, tmp_path: Path) -> None:
    model = {"model": "openai/x", "api_key": "x", "mock_response": MOCKED}
    drawn = {"model": "openai/dall-e-3", "api_key": "x", "mock_response": "https://x/a.png"}
    models = {"mock": model, "drawn": drawn}
    named = [{"model_name": name, "litellm_params": one} for name, one in models.items()]
    listed = {"model_list": named}
    config = tmp_path / "litellm.yaml"
    config.write_text(str(listed).replace("'", '"'))
    command = ["litellm", "--config", str(config), "--port", "PORT", "--telemetry", "False"]
    with running("litellm", "LITELLM_PYTHON", command, tmp_path) as port:
        for dialect, path in (("openai", "/v1"), ("anthropic", "")):
            near.serve("mock", url=f"http://127.0.0.1:{port}{path}", dialect=dialect)
            for streams in (False, True):
                answer = await near.chat(stream=streams, max_tokens=64)
                assert text_of_any(answer) == MOCKED
        assert all(one.completion_tokens > 0 for one in near.ledger.settled)
        near.serve("missing", url=f"http://127.0.0.1:{port}/v1")
        assert (await near.chat()).status in (400, 502)
        near.serve("drawn", task="images", url=f"http://127.0.0.1:{port}/v1")
        drawing = await near.client.post("/v1/images/generations", {"model": "far", "prompt": "a"})
        assert drawing.json["data"][0]["url"] == "https://x/a.png"
        assert near.ledger.settled[-1].metered.num_units == 1


@pytest.mark.slow
async def test_llama_cpp(near: Near, tmp_path: Path, default_gguf: Path) -> None:
    command = ["python", "-m", "llama_cpp.server", "--model", str(default_gguf)]
    command += ["--host", "127.0.0.1", "--port", "PORT", "--n_ctx", "512"]
    with running("llama_cpp", "LLAMA_CPP_PYTHON", command, tmp_path) as port:
        near.serve("any", url=f"http://127.0.0.1:{port}/v1")
        answer = await near.chat(max_tokens=8, temperature=0)
        assert text_of_any(answer)
        streamed = await near.chat(max_tokens=8, temperature=0, stream=True)
        assert streamed.chunks[-1] == "[DONE]"
        turn = [{"role": "user", "content": "hi"}]
        others: dict[str, Any] = {
            "/v1/messages": {"messages": turn, "max_tokens": 8},
            "/api/chat": {"messages": turn, "stream": False, "options": {"num_predict": 8}},
            "/v1/responses": {"input": "hi", "max_output_tokens": 16, "store": False},
            "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 8},
        }
        for path, body in others.items():
            answer = await near.client.post(path, {"model": "far", **body})
            assert answer.status == 200, (path, answer.body)
        assert len(near.ledger.settled) == 2 + len(others)
        assert all(0 < one.completion_tokens <= 17 for one in near.ledger.settled)
        # It answers one choice and ignores the other, which is no answer to the client.
        assert (await near.chat(max_tokens=4, n=2)).error["code"] == "upstream_failed"
