"""Tokens and texts, as vLLM's clients ask for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from inference.protocol.generation import ChatInput, Submit, TokenizeRequest, TokensInput
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import ENTRY, FakeCatalogue
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.inference.gateway.responses_support import tokenizes

TURNS = [{"role": "user", "content": "Hi"}]


def asked(neuron: FakeNeuron) -> TokenizeRequest:
    submit = neuron.frames[-1]
    assert isinstance(submit, Submit) and isinstance(submit.request, TokenizeRequest)
    return submit.request


async def test_there_and_back(client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger) -> None:
    neuron.script = tokenizes
    answer = await client.post("/tokenize", {"model": "tiny", "prompt": "Hi!"})
    assert answer.json == {
        "count": 2,
        "max_model_len": 100,
        "tokens": [5, 6],
        "token_strs": ["Hi", "!"],
    }
    assert asked(neuron).adds_special_tokens
    back = await client.post("/detokenize", {"model": "tiny", "tokens": [5, 6]})
    assert back.json == {"prompt": "Hi!"}
    assert asked(neuron).input == TokensInput(prompts=[[5, 6]])


async def test_a_chat(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = tokenizes
    body = {"model": "tiny", "messages": TURNS, "add_generation_prompt": False}
    assert (await client.post("/tokenize", body)).status == 200
    request = asked(neuron)
    assert isinstance(request.input, ChatInput)
    assert not request.adds_special_tokens and not request.input.adds_generation_prompt


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "Hi", "messages": TURNS}, "prompt"),
        ("/tokenize", {"prompt": "Hi", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "Hi", "stream": True}, "stream"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_what_is_refused(
    client: AsgiClient, path: str, fields: dict[str, Any], param: str
) -> None:
    refused = await client.post(path, {"model": "tiny", **fields})
    assert (refused.status, refused.error["param"]) == (400, param)


async def test_the_only_model_needs_no_name(
    client: AsgiClient, neuron: FakeNeuron, catalogue: FakeCatalogue
) -> None:
    """The only one that is loaded, of several; or the only one that is offered."""
    neuron.script = tokenizes
    catalogue.listed = [ENTRY, dataclasses.replace(ENTRY, name="second", aliases=())]
    for path, fields in (("/tokenize", {"prompt": "Hi!"}), ("/detokenize", {"tokens": [5, 6]})):
        assert (await client.post(path, fields)).status == 200
        assert asked(neuron).model == "tiny"
    assert (await client.get("/tokenizer_info")).status == 200
    catalogue.listed = [dataclasses.replace(ENTRY, name=name, aliases=()) for name in "ab"]
    refused = await client.post("/tokenize", {"prompt": "Hi!"})
    assert (refused.status, refused.error["param"]) == (400, "model")
