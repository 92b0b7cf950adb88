"""Long answers with penalties, in every dialect: asked for by the client where the dialect has the
field, and by the model's own file where the client names none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest

from tests.live.catalogue import add_model, withdraw_model
from tests.live.serving import MODEL, WAIT_TIMEOUT_S, Serve

MAX_TOKENS = 300
TEXT = "Write a long story about a fox, a river and a town far away."
MESSAGES = [{"role": "user", "content": TEXT}]
OPTIONS: dict[str, Any] = {"num_predict": MAX_TOKENS, "temperature": 0}
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": MAX_TOKENS}),
    "completions": (
        "/v1/completions",
        {"prompt": TEXT, "max_tokens": MAX_TOKENS, "ignore_eos": True},
    ),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": MAX_TOKENS}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": MAX_TOKENS}),
    "ollama chat": ("/api/chat", {"messages": MESSAGES, "options": OPTIONS, "stream": False}),
    "ollama generate": ("/api/generate", {"prompt": TEXT, "options": OPTIONS, "stream": False}),
}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"frequency_penalty": 0.5}),
    ("chat", {"presence_penalty": 0.5}),
    ("chat", {"repetition_penalty": 1.2}),
    ("completions", {"frequency_penalty": -0.2, "presence_penalty": 1.5}),
    ("completions", {"repetition_penalty": 1.1}),
    ("ollama chat", {"options": OPTIONS | {"repeat_penalty": 1.2}}),
    ("ollama generate", {"options": OPTIONS | {"frequency_penalty": 0.7}}),
]


@pytest.fixture(scope="module")
def repeating(
    shared_server: Serve, default_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The default model, whose file asks for a penalty."""
    file = tmp_path_factory.mktemp("repeating") / "model.gguf"
    _copy_with_penalty(default_gguf, file, 1.3)
    name = add_model(shared_server, file)
    yield name
    withdraw_model(shared_server, name)


def answer_in(helexa: Serve, model: str, dialect: str, **fields: Any) -> dict[str, Any]:
    path, body = PATHS[dialect]
    greedy = {} if "options" in body else {"temperature": 0}
    response = httpx.post(
        helexa.url + path, json={"model": model} | body | greedy | fields, timeout=WAIT_TIMEOUT_S
    )
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def text_of(answer: dict[str, Any], dialect: str) -> str:
    match dialect:
        case "chat":
            return str(answer["choices"][0]["message"]["content"])
        case "completions":
            return str(answer["choices"][0]["text"])
        case "responses":
            return str(answer["output"][-1]["content"][0]["text"])
        case "messages":
            return str(answer["content"][0]["text"])
        case "ollama chat":
            return str(answer["message"]["content"])
    return str(answer["response"])


@pytest.mark.slow
def test_asked_for_among_others(helexa: Serve) -> None:
    with ThreadPoolExecutor(len(ASKED)) as pool:
        asked = [pool.submit(answer_in, helexa, MODEL, dialect, **more) for dialect, more in ASKED]
        answers = [one.result() for one in asked]
    for (dialect, more), answer in zip(ASKED, answers, strict=True):
        alone = answer_in(helexa, MODEL, dialect, **more)
        assert text_of(answer, dialect) == text_of(alone, dialect), (dialect, more)
        assert len(set(text_of(answer, dialect).split())) > 60, (dialect, more)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", PATHS)
def test_by_the_models_own_file(helexa: Serve, repeating: str, dialect: str) -> None:
    asked = {"chat": "repetition_penalty", "completions": "repetition_penalty"}.get(dialect)
    answer = text_of(answer_in(helexa, repeating, dialect), dialect)
    assert len(set(answer.split())) > 60
    assert answer != text_of(answer_in(helexa, MODEL, dialect), dialect)
    if asked is not None:
        assert answer == text_of(answer_in(helexa, repeating, dialect, **{asked: 1.3}), dialect)
        assert answer != text_of(answer_in(helexa, repeating, dialect, **{asked: 1.0}), dialect)


@pytest.mark.parametrize("field", [{"logit_bias": {"49152": 1}}, {"stop_token_ids": [49152]}])
@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_tokens_outside_the_vocabulary_are_refused_by_their_field(
    helexa: Serve, dialect: str, field: dict[str, Any]
) -> None:
    path, body = PATHS[dialect]
    response = httpx.post(
        helexa.url + path, json={"model": MODEL} | body | field, timeout=WAIT_TIMEOUT_S
    )
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("bad_token_id", next(iter(field)))
    assert "49152" in error["message"]


def _copy_with_penalty(source: Path, copy: Path, penalty: float) -> None:
    """The same file with ``general.sampling.penalty_repeat``."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(copy, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value_type = field.types[0]
        sub_type = field.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), value_type, sub_type)
    writer.add_float32("general.sampling.penalty_repeat", penalty)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
