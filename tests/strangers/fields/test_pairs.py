"""Every two fields together, at their usual values: a right answer, or a refusal that names one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.live.serving import WAIT_TIMEOUT_S, Serve
from tests.strangers.fields.answer_rules import check
from tests.strangers.fields.answers import Answer, ask
from tests.strangers.fields.field_values import FIELDS, SHORT_TOKENS, body_of_both

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

NUM_AT_ONCE = 8


@pytest.fixture(scope="module")
def client(server: Serve) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=WAIT_TIMEOUT_S) as made:
        yield made


@pytest.mark.parametrize("path", FIELDS)
def test_every_two_fields_together(client: httpx.Client, path: str) -> None:
    pairs = list(itertools.combinations(FIELDS[path], 2))

    def one(pair: tuple[str, str]) -> Answer:
        body = body_of_both(path, *pair, max_tokens=SHORT_TOKENS)
        answer = ask(client, path, body)
        if answer.status == 200:
            check(path, body, answer)
        else:
            assert answer.status in (400, 422), (pair, answer)
            assert answer.error is not None
            refusal = f"{answer.error.get('param')} {answer.error['message']}"
            assert any(name in refusal for name in pair), (pair, answer.error)
        return answer

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        answers = list(pool.map(one, pairs))
    refused = sum(answer.status != 200 for answer in answers)
    assert refused < len(pairs) / 4, "most fields go together"
