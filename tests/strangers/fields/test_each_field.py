"""Each field at its least, usual and greatest value and one step outside, on the default model.

Eight requests run at once: those of one endpoint, in turns with a plain greedy request whose answer
must stay what it was alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.strangers.fields.answers import Answer, ask, ask_streamed, check
from tests.strangers.fields.field_values import FIELDS, SHORT_TOKENS, body_of, plain_body

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

NUM_AT_ONCE = 8
STREAMED = ("/v1/chat/completions", "/v1/completions")
PENALTIES = (
    {},
    {"frequency_penalty": 2},
    {"frequency_penalty": -0.1},
    {"presence_penalty": 2},
    {"presence_penalty": -0.5},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5},
)


def cases(path: str, *, is_inside: bool) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, tried in FIELDS[path].items()
        for value in (tried.inside if is_inside else tried.outside)
    ]


@pytest.mark.parametrize("path", FIELDS)
def test_what_is_outside_is_refused_by_name(client: httpx.Client, path: str) -> None:
    for name, value in cases(path, is_inside=False):
        refused = ask(client, path, body_of(path, name, value))
        assert refused.status in (400, 422), (name, value, refused)
        assert refused.error is not None
        refusal = f"{refused.error.get('param')} {refused.error['message']}"
        assert name in refusal, (name, value, refused.error)


@pytest.mark.parametrize("path", FIELDS)
def test_what_is_inside_is_kept_to_among_neighbours(client: httpx.Client, path: str) -> None:
    plain = plain_body(path, max_tokens=SHORT_TOKENS)
    alone = ask(client, path, plain)
    check(path, plain, alone)

    def one(case: tuple[str, Any]) -> None:
        name, value = case
        body = body_of(path, name, value)
        answer = ask(client, path, body)
        check(path, body, answer)
        if path in STREAMED and name != "prompt_logprobs":
            _check_streamed(path, body, answer, ask_streamed(client, path, body))
        assert texts(ask(client, path, plain)) == texts(alone), f"a neighbour of {name}: {value}"

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(one, cases(path, is_inside=True)))


def _check_streamed(path: str, body: dict[str, Any], answer: Answer, streamed: Answer) -> None:
    unread = ("logprobs", "return_token_ids")
    check(path, {name: value for name, value in body.items() if name not in unread}, streamed)
    if body["temperature"] == 0 or "seed" in body:
        assert texts(streamed) == texts(answer), body
        assert streamed.completion_tokens == answer.completion_tokens


def texts(answer: Answer) -> list[str]:
    return [answer.choices[index].text for index in sorted(answer.choices)]


def test_penalties_are_as_in_the_log_probabilities(client: httpx.Client) -> None:
    """Over three hundred tokens, eight at once."""
    path = "/v1/chat/completions"
    plain = plain_body(path, max_tokens=300)
    shown = {"logprobs": True, "top_logprobs": 20, "ignore_eos": True}
    bodies = [plain | shown | penalties for penalties in PENALTIES]
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        answers = list(pool.map(lambda body: ask(client, path, body), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        check(path, body, answer)
        assert len(answer.choices[0].logprobs) == 300
    assert len({answer.choices[0].text for answer in answers}) > 3
