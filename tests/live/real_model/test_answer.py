"""Answers of the real model that ``test_one_serve`` does not ask for: held by grammars, scored,
continued over a socket, asked from a shell, and of a model that is loaded for the request."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import httpx
import ollama
import openai
import pydantic
import pytest

from tests.live.catalogue import add_model, operate, run, withdraw_model
from tests.live.serving import (
    MODEL,
    QUESTION,
    REPOSITORY_DIR,
    WAIT_TIMEOUT_S,
    Serve,
    chat_body,
    serve_environment,
    wait_until,
)

Word = Annotated[str, pydantic.Field(max_length=20)]
INVENT = "Invent a person with two hobbies."


class Person(pydantic.BaseModel):
    """Bounded, so that even a small model comes to an end."""

    name: Word
    age: Annotated[int, pydantic.Field(ge=0, le=120)]
    hobbies: Annotated[list[Word], pydantic.Field(max_length=2)]


@pytest.fixture
def client(helexa: Serve) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{helexa.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_schema_is_followed(helexa: Serve, client: openai.OpenAI) -> None:
    """The text of a small model parses, in every dialect with schemas."""
    question: Any = [{"role": "user", "content": INVENT}]
    chat = client.chat.completions.parse(
        model=MODEL, messages=question, response_format=Person, seed=1, max_tokens=400
    )
    assert chat.choices[0].finish_reason == "stop"
    assert isinstance(chat.choices[0].message.parsed, Person)
    response = client.responses.parse(
        model=MODEL, input=INVENT, text_format=Person, temperature=0, max_output_tokens=400
    )
    assert isinstance(response.output_parsed, Person)
    with ollama.Client(host=helexa.url, timeout=WAIT_TIMEOUT_S) as other:
        answer = other.chat(
            f"{MODEL}:latest",
            question,
            format=Person.model_json_schema(),
            options={"temperature": 0, "num_predict": 400},
        )
    Person.model_validate_json(answer.message.content or "")


def test_answers_that_are_not_json_are_followed_too(client: openai.OpenAI) -> None:
    demands: list[tuple[dict[str, Any], str]] = [
        ({"guided_choice": ["red", "green and blue"]}, "red|green and blue"),
        ({"guided_regex": r"[A-Z][a-z]{2,8}/\d"}, r"[A-Z][a-z]{2,8}/\d"),
        ({"structured_outputs": {"grammar": 'root ::= "it is " ("a"|"b")+ "."'}}, r"it is [ab]+\."),
    ]
    for demand, expected in demands:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Name a colour."}],
            max_tokens=60,
            extra_body=demand,
        )
        choice = answer.choices[0]
        if choice.finish_reason == "stop":
            assert re.fullmatch(expected, choice.message.content or ""), demand


def test_token_ids_are_the_tokenizers(helexa: Serve) -> None:
    """A request reports the token ids that /tokenize gives for the same text."""

    def asked(path: str, **fields: Any) -> Any:
        body = {"model": MODEL} | fields
        return httpx.post(f"{helexa.url}{path}", json=body, timeout=WAIT_TIMEOUT_S).json()

    messages = [{"role": "user", "content": "Say hello."}]
    fields = {"messages": messages, "return_token_ids": True, "max_tokens": 8, "temperature": 0}
    answer = asked("/chat/completions", **fields)
    assert answer["prompt_token_ids"] == asked("/tokenize", messages=messages)["tokens"]
    choice = answer["choices"][0]
    text = asked("/detokenize", tokens=choice["token_ids"])["prompt"]
    assert text == choice["message"]["content"]


def test_a_prompt_is_scored_as_its_echo_is(client: openai.OpenAI) -> None:
    """Evaluation suites ask so: by echo, and by vLLM's prompt_logprobs. The likelier of two endings
    has the greater score."""
    ends = {}
    for ending in ("Paris", "carpet"):
        text = f"The capital of France is {ending}"
        fields: Any = {"echo": True, "logprobs": 1, "max_tokens": 0}
        extra = {"prompt_logprobs": 2}
        answer: Any = client.completions.create(
            model=MODEL, prompt=text, **fields, extra_body=extra
        ).to_dict()
        (choice,) = answer["choices"]
        tokens, echoed = choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]
        assert choice["text"] == "".join(tokens) == text
        assert echoed[0] is None and choice["prompt_logprobs"][0] is None
        for value, token, position in list(
            zip(echoed, tokens, choice["prompt_logprobs"], strict=True)
        )[1:]:
            own = next(iter(position.values()))
            assert own["logprob"] == pytest.approx(value) and own["decoded_token"] == token
            assert {1, 2} <= {one["rank"] for one in position.values()}
            assert len(position) == (2 if own["rank"] <= 2 else 3)
        ends[ending] = sum(echoed[-1:])
    assert ends["Paris"] > ends["carpet"]


def test_what_was_prepared_over_a_socket_is_not_computed_again(helexa: Serve) -> None:
    instructions = "You answer questions about the capitals of countries, in one short sentence. "
    client = openai.OpenAI(base_url=f"{helexa.url}/v1", api_key="x")
    with client.responses.connect() as connection:

        def turn(**fields: Any) -> Any:
            sent = {"type": "response.create", "model": MODEL, "temperature": 0, "store": False}
            connection.send(sent | fields)  # type: ignore[arg-type]
            for event in connection:
                assert event.type not in ("error", "response.failed"), event
                if event.type == "response.completed":
                    return event.response
            raise AssertionError("the socket was closed")

        developer = {"role": "developer", "content": instructions * 8}
        prepared = turn(input=[developer], generate=False)
        assert (prepared.output, prepared.usage.output_tokens) == ([], 0)
        answer = turn(input=QUESTION, previous_response_id=prepared.id)
        assert "Paris" in answer.output_text
        assert answer.usage.input_tokens_details.cached_tokens >= 96


def test_the_curl_line_and_the_chat_command_of_a_newcomer_work(helexa: Serve) -> None:
    """The line that serve prints for pasting; and a question through a pipe without URL or key."""
    body = json.loads(helexa.wait_printed(r" curl .*-d '(.*)'")[1])
    response = httpx.post(f"{helexa.url}/v1/chat/completions", json=body, timeout=WAIT_TIMEOUT_S)
    assert "Paris" in response.text
    assert body == chat_body()
    environment = serve_environment() | {"HELEXA_DATA_DIR": str(helexa.data_dir)}
    environment.pop("HELEXA_URL", None)
    done = subprocess.run(
        [sys.executable, str(REPOSITORY_DIR / "manage.py"), "chat", MODEL, "--max-tokens", "8"],
        input=QUESTION,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert re.search(r"\[\d tokens, [\d.]+ tok/s\]", done.stderr), done.stderr


def recorded_report(helexa: Serve, name: str) -> dict[str, Any]:
    """The load report of the replica's row, once what it took is written down."""
    code = (
        "import json\n"
        "from fleet.models import LoadMeasurement, Replica\n"
        f"measured = LoadMeasurement.objects.filter(model__name={name!r}).exists()\n"
        f"row = Replica.objects.filter(model_name={name!r}, status='ready').first()\n"
        "print(json.dumps(row.report if measured and row else None))"
    )
    report: dict[str, Any] = wait_until(
        lambda: json.loads(run(helexa, code)), "the load is recorded"
    )
    return report


def test_the_second_load_knows_what_the_first_one_took(helexa: Serve, default_gguf: Path) -> None:
    name = add_model(helexa, default_gguf)
    assert helexa.replica(name) is None
    assert "Paris" in helexa.answer(model=name)
    first = recorded_report(helexa, name)
    assert first["actual_bytes"] > first["weight_bytes"] + first["kv_bytes"]
    operate(helexa, "POST", f"/api/catalogue/{name}/unload")
    wait_until(lambda: helexa.replica(name) is None, "it is unloaded")
    assert "Paris" in helexa.answer(model=name)
    second = recorded_report(helexa, name)
    error_bytes = second["estimated_bytes"] - second["actual_bytes"]
    assert abs(error_bytes) <= 0.05 * (second["actual_bytes"] - second["kv_bytes"])

    # The context that was derived is advertised and enforced.
    context_tokens = second["context_tokens"]
    card = httpx.get(f"{helexa.url}/v1/models/{name}", timeout=WAIT_TIMEOUT_S).json()
    assert card["limit"]["context"] == context_tokens
    prompt_tokens = helexa.chat(model=name, max_tokens=1).json()["usage"]["prompt_tokens"]
    refused = helexa.chat(model=name, max_tokens=context_tokens - prompt_tokens + 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert f"context length is {context_tokens} tokens" in refused.json()["error"]["message"]


def test_a_second_published_model_takes_turns_with_the_first(
    helexa: Serve, gemma_gguf: Path
) -> None:
    """Gemma 3 270M is a base model without a chat template, whose file has mixed types."""
    name = add_model(helexa, gemma_gguf)

    def completed(prompt: str, model: str = name) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}
        url = f"{helexa.url}/v1/completions"
        response = httpx.post(url, json=body, timeout=WAIT_TIMEOUT_S)
        assert response.is_success, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    capital = "The capital of Italy is Rome. The capital of France is"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(completed, [capital] * 8, [MODEL, name] * 4))
    assert all("Paris" in answer for answer in answers), answers
    # Longer than the window of most of its layers.
    beyond = "The code word is heron. " + "Rain fell on the roof. " * 120 + "The code word is"
    assert completed(beyond).startswith(" heron")
    withdraw_model(helexa, name)
