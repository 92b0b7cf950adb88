"""Every dialect with the real default model: grammars, and several choices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

import anthropic
import httpx
import ollama
import openai
import pydantic
import pydantic_core
import pytest

from tests.live.serving import MODEL, QUESTION, WAIT_TIMEOUT_S, Serve

Word = Annotated[str, pydantic.Field(max_length=20)]


class Person(pydantic.BaseModel):
    """Bounded, so that even a small model comes to an end."""

    name: Word
    age: Annotated[int, pydantic.Field(ge=0, le=120)]
    hobbies: Annotated[list[Word], pydantic.Field(max_length=2)]


@pytest.fixture(scope="module")
def client(shared_server: Serve) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_of_helexa(shared_server: Serve) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=shared_server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("seed", [1, 2])
def test_a_schema_is_followed(client: openai.OpenAI, seed: int) -> None:
    """The text of a small model parses, in every dialect with schemas."""
    question: Any = [{"role": "user", "content": "Invent a person with two hobbies."}]
    chat = client.chat.completions.parse(
        model=MODEL, messages=question, response_format=Person, seed=seed, max_tokens=400
    )
    assert chat.choices[0].finish_reason == "stop"
    assert isinstance(chat.choices[0].message.parsed, Person)


def test_a_schema_is_followed_in_responses(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL,
        input="Invent a person with two hobbies.",
        text_format=Person,
        temperature=0,
        max_output_tokens=400,
    )
    assert isinstance(response.output_parsed, Person)


def test_any_json_object(client: openai.OpenAI) -> None:
    """The answer is an object, or the beginning of one, where max_tokens cuts it off."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe a cat as a small JSON object."}],
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=60,
    )
    written = (answer.choices[0].message.content or "").encode()
    assert isinstance(pydantic_core.from_json(written, allow_partial="trailing-strings"), dict)


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
        assert answer.system_fingerprint is not None


def test_token_ids_are_the_tokenizers(client: openai.OpenAI, shared_server: Serve) -> None:
    """A request reports the token ids that /tokenize gives for the same text."""
    ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]}
    answer = httpx.post(
        f"{shared_server.url}/chat/completions",
        json={**ask, "return_token_ids": True, "max_tokens": 8, "temperature": 0},
        timeout=WAIT_TIMEOUT_S,
    ).json()
    reported = httpx.post(f"{shared_server.url}/tokenize", json=ask, timeout=WAIT_TIMEOUT_S).json()
    assert answer["prompt_token_ids"] == reported["tokens"]
    choice = answer["choices"][0]
    back = {"model": MODEL, "tokens": choice["token_ids"]}
    text = httpx.post(f"{shared_server.url}/detokenize", json=back, timeout=WAIT_TIMEOUT_S).json()
    assert text["prompt"] == choice["message"]["content"]


def test_a_prompt_is_scored_as_its_echo_is(client: openai.OpenAI) -> None:
    """Evaluation suites ask so: by echo, and by vLLM's prompt_logprobs, whole or as a chat."""
    text = "The capital of France is Paris."
    answer: Any = client.completions.create(
        model=MODEL,
        prompt=[text, "Hi"],
        echo=True,
        logprobs=1,
        max_tokens=0,
        n=2,
        extra_body={"prompt_logprobs": 2},
    ).to_dict()
    first, again, _, _ = answer["choices"]
    assert first == {**again, "index": 0} and first["text"] == text
    echoed, scored = first["logprobs"]["token_logprobs"], first["prompt_logprobs"]
    assert echoed[0] is None and scored[0] is None and len(scored) == len(echoed) > 3
    for value, token, position in zip(echoed, first["logprobs"]["tokens"], scored, strict=True):
        if position is None:
            continue
        own = next(iter(position.values()))
        assert own["logprob"] == pytest.approx(value) and own["decoded_token"] == token
        ranks = [one["rank"] for one in position.values()]
        assert {1, 2} <= set(ranks) and len(position) == (2 if own["rank"] <= 2 else 3)
        assert max(one["logprob"] for one in position.values()) <= 0
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        max_tokens=1,
        extra_body={"prompt_logprobs": 0},
    )
    reported: Any = chat.to_dict()["prompt_logprobs"]
    assert chat.usage is not None and len(reported) == chat.usage.prompt_tokens
    assert all(len(position) == 1 for position in reported[1:])


def test_ollamas_sdk(shared_server: Serve) -> None:
    with ollama.Client(host=shared_server.url, timeout=WAIT_TIMEOUT_S) as client:
        assert MODEL in [model.model for model in client.list().models]
        shown = client.show(MODEL)
        assert shown.modelinfo is not None
        running = {model.model: model for model in client.ps().models}
        assert shown.modelinfo["llama.context_length"] == running[MODEL].context_length
        question: Any = [{"role": "user", "content": "Invent a person with two hobbies."}]
        answer = client.chat(
            f"{MODEL}:latest",
            question,
            format=Person.model_json_schema(),
            options={"temperature": 0, "num_predict": 400},
        )
        Person.model_validate_json(answer.message.content or "")
        greedy: Any = {"temperature": 0, "num_predict": 12}
        whole = client.generate(MODEL, "Say hello.", options=greedy)
        parts = client.generate(MODEL, "Say hello.", options=greedy, stream=True)
        assert "".join(part.response or "" for part in parts) == whole.response
        assert whole.eval_count == 12 or whole.done_reason == "stop"
        with pytest.raises(ollama.ResponseError, match="maximum context length"):
            client.generate(MODEL, "word " * 20_000, options={"num_ctx": 2048})


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"enum": ["UTC", "CET"]}},
            "required": ["zone"],
            "additionalProperties": False,
        },
    },
}


def test_tools_need_a_template_that_knows_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="tools") as refusal:
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What time is it?"}],
            tools=[TOOL],
        )
    assert (refusal.value.code, refusal.value.param) == ("template_render_failed", "tools")


def test_a_forced_tool_needs_none(client: openai.OpenAI) -> None:
    """A grammar holds the answer to it: the object mode of SDKs."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What time is it?"}],
        tools=[TOOL],
        tool_choice="required",
        temperature=0,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function" and call.function.name == "get_time"
    assert json.loads(call.function.arguments)["zone"] in ("UTC", "CET")


def test_choices_are_seeded(client: openai.OpenAI) -> None:
    """The same again with the same seed, and each choice its own."""

    def ask() -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Name an animal and a reason."}],
            n=3,
            seed=7,
            temperature=1.0,
            max_tokens=24,
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens < 60, "the prompt counts once"
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert ask() == first
    assert len(set(first)) == 3


def test_the_same_answer_in_every_dialect(
    client: openai.OpenAI, anthropic_of_helexa: anthropic.Anthropic
) -> None:
    """One request inside: the same tokens in, the same text out."""
    question: Any = [{"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(
        model=MODEL, messages=question, temperature=0, max_tokens=50
    )
    response = client.responses.create(
        model=MODEL, input=QUESTION, temperature=0, max_output_tokens=50
    )
    message = anthropic_of_helexa.messages.create(
        model=MODEL, messages=question, max_tokens=50, extra_body={"temperature": 0}
    )
    (block,) = message.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert chat.choices[0].message.content == response.output_text == block.text
    assert chat.usage is not None
    assert response.usage is not None
    counted = anthropic_of_helexa.messages.count_tokens(model=MODEL, messages=question)
    used = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert chat.usage.prompt_tokens == response.usage.input_tokens == counted.input_tokens == used
    assert chat.usage.completion_tokens == message.usage.output_tokens


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"max_tokens": 60}),
        ("/v1/responses", {"max_output_tokens": 60}),
    ],
)
def test_characters_are_never_split(helexa: Serve, path: str, fields: dict[str, Any]) -> None:
    text = "Repeat exactly: 日本語 🦊 žluťoučký kůň 🦊🦊"
    body: dict[str, Any] = {"model": MODEL, "stream": True, "temperature": 0} | fields
    if path == "/v1/responses":
        body["input"] = text
    else:
        body["messages"] = [{"role": "user", "content": text}]
    response = httpx.post(helexa.url + path, json=body, timeout=WAIT_TIMEOUT_S)
    assert response.status_code == 200
    assert "\ufffd" not in response.content.decode("utf-8", errors="strict")
    datas = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    deltas = [json.loads(data).get("delta") for data in datas if data != "[DONE]"]
    reported = "".join(d if isinstance(d, str) else (d or {}).get("text", "") for d in deltas)
    assert any(ord(character) > 127 for character in reported)
