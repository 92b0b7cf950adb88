"""Keys and hard caps on a whole server: requests served and refused, and who pays in the end."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.live.catalogue import run
from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.serving import WAIT_TIMEOUT_S, chat_body, wait_until

QUESTION = "what does it cost"
WORDS = "".join(f"{number} " for number in range(400))
"""Some 1,400 tokens."""
TOKEN_S = 0.02
CAPS = {"is used up": 400, "outlives its gateway": 100_000}
MAKE_KEYS = f"""
import sys
from django.core.management import call_command
call_command("accounts", "create", "lab", stdout=sys.stderr)
for cap in {list(CAPS.values())}:
    call_command("keys", "create", "lab", "--cap-tokens", str(cap))
"""


@pytest.fixture(scope="module")
def keys(scripted_server: ScriptedServe) -> dict[str, str]:
    """One account's, by what becomes of each."""
    return dict(zip(CAPS, run(scripted_server, MAKE_KEYS).split(), strict=True))


def me(serve: ScriptedServe, key: str) -> dict[str, Any]:
    found = httpx.get(
        f"{serve.url}/api/me", headers={"authorization": f"Bearer {key}"}, timeout=30.0
    )
    found.raise_for_status()
    body: dict[str, Any] = found.json()
    return body


def the_budget(serve: ScriptedServe, key: str) -> dict[str, Any]:
    (budget,) = me(serve, key)["budgets"]
    found: dict[str, Any] = budget
    return found


def wait_until_charged(serve: ScriptedServe, key: str, tokens: int) -> None:
    wait_until(lambda: the_budget(serve, key)["spent"] == tokens, "it is charged")


def used(serve: ScriptedServe, key: str) -> dict[str, Any]:
    """All of a key's usage."""
    found = httpx.get(
        f"{serve.url}/api/usage?by=key", headers={"authorization": f"Bearer {key}"}, timeout=30.0
    )
    found.raise_for_status()
    total: dict[str, Any] = found.json()["total"]
    return total


def test_a_cap_is_used_up_and_never_passed(
    scripted_server: ScriptedServe, hermes: ScriptedModel, keys: dict[str, str]
) -> None:
    cap, key = CAPS["is used up"], keys["is used up"]
    hermes.answers(QUESTION, "Not much.")
    spent = 0
    with openai.OpenAI(base_url=f"{scripted_server.url}/v1", api_key=key, max_retries=0) as client:
        with pytest.raises(openai.RateLimitError) as refused:
            for _ in range(cap):
                answer = client.chat.completions.create(
                    model="hermes", messages=[{"role": "user", "content": QUESTION}]
                )
                assert answer.usage is not None
                spent += answer.usage.total_tokens
                wait_until_charged(scripted_server, key, spent)
    assert refused.value.code == "insufficient_quota"
    assert 0 < spent <= cap
    budget = the_budget(scripted_server, key)
    assert (budget["spent"], budget["reserved"], budget["cap"]) == (spent, 0, cap)
    total = used(scripted_server, key)
    assert total["prompt_tokens"] + total["completion_tokens"] == spent


def test_a_dead_gateways_requests_are_paid_for_once(
    scripted_server: ScriptedServe, hermes: ScriptedModel, keys: dict[str, str]
) -> None:
    key = keys["outlives its gateway"]
    hermes.answers("count slowly", WORDS, token_s=TOKEN_S)
    body = chat_body(
        model="hermes", stream=True, messages=[{"role": "user", "content": "count slowly"}]
    )
    seen = 0
    with (
        pytest.raises(httpx.HTTPError),
        httpx.stream(
            "POST",
            f"{scripted_server.url}/v1/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {key}"},
            timeout=WAIT_TIMEOUT_S,
        ) as response,
    ):
        for line in response.iter_lines():
            seen += '"content":"' in line and '"content":""' not in line
            if seen == 5:
                scripted_server.kill("gateway")
    wait_until(scripted_server.is_healthy, "a new gateway")
    wait_until(lambda: used(scripted_server, key)["requests"] > 0, "it is settled")
    wait_until(lambda: the_budget(scripted_server, key)["reserved"] == 0, "nothing is held")
    total = used(scripted_server, key)
    assert total["requests"] == 1
    assert total["completion_tokens"] >= 5
    charged = total["prompt_tokens"] + total["completion_tokens"]
    assert the_budget(scripted_server, key)["spent"] == charged
