"""Each field of a chat at its least, usual and greatest value and one step outside, on the default
model. Eight requests run at once, in turns with a plain greedy request whose answer must stay what
it was alone.

The dialects parse to the same request (``tests/golden``), so the chat's fields stand for all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.strangers.fields.answers import Answer, ask, ask_streamed, check, error_of
from tests.strangers.fields.field_values import FIELDS, SHORT_TOKENS, body_of, plain_body

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

NUM_AT_ONCE = 8
PENALTIES = (
    {},
    {"frequency_penalty": 2},
    {"frequency_penalty": -0.1},
    {"presence_penalty": 2},
    {"presence_penalty": -0.5},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5},
)


def test_what_is_outside_is_refused_by_name(client: httpx.Client) -> None:
    for name, tried in FIELDS.items():
        for value in tried.outside:
            error = error_of(client, body_of(name, value))
            assert name in f"{error.get('param')} {error['message']}", (name, value, error)


def test_what_is_inside_is_kept_to_among_neighbours(client: httpx.Client) -> None:
    plain = plain_body(max_tokens=SHORT_TOKENS)
    alone = ask(client, plain)
    check(plain, alone)

    def one(case: tuple[str, Any]) -> None:
        name, value = case
        body = body_of(name, value)
        answer = ask(client, body)
        check(body, answer)
        if name != "prompt_logprobs":
            _check_streamed(body, answer, ask_streamed(client, body))
        assert texts(ask(client, plain)) == texts(alone), f"a neighbour of {name}: {value}"

    cases = [(name, value) for name, tried in FIELDS.items() for value in tried.inside]
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(one, cases))


def _check_streamed(body: dict[str, Any], answer: Answer, streamed: Answer) -> None:
    unread = ("logprobs", "return_token_ids")
    check({name: value for name, value in body.items() if name not in unread}, streamed)
    if body["temperature"] == 0 or "seed" in body:
        assert texts(streamed) == texts(answer), body
        assert streamed.completion_tokens == answer.completion_tokens


def texts(answer: Answer) -> list[str]:
    return [answer.choices[index].text for index in sorted(answer.choices)]


def test_penalties_are_as_in_the_log_probabilities(client: httpx.Client) -> None:
    """Over three hundred tokens, eight at once."""
    plain = plain_body(max_tokens=300)
    shown = {"logprobs": True, "top_logprobs": 20, "ignore_eos": True}
    bodies = [plain | shown | penalties for penalties in PENALTIES]
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        answers = list(pool.map(lambda body: ask(client, body), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        check(body, answer)
        assert len(answer.choices[0].logprobs) == 300
    assert len({answer.choices[0].text for answer in answers}) > 3
