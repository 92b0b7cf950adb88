"""Keys and hard caps on a whole server: what is served and refused, and who pays in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import openai
import pytest

from tests.live.scripted_model import ScriptedModel
from tests.live.scripted_server import ScriptedServe
from tests.live.serving import REPOSITORY_DIR, WAIT_TIMEOUT_S, chat_body, wait_until

QUESTION = "what does it cost"
WORDS = "".join(f"{number} " for number in range(400))
"""Some 1,400 tokens."""
TOKEN_S = 0.02


def manage(serve: ScriptedServe, *arguments: str) -> Any:
    """The JSON that a command prints, run as an operator on the server's machine would."""
    finished = subprocess.run(
        [sys.executable, str(REPOSITORY_DIR / "manage.py"), *arguments, "--json"],
        env=serve.find("gateway").environ(),
        cwd=REPOSITORY_DIR,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.fixture(scope="module")
def account(scripted_server: ScriptedServe) -> str:
    manage(scripted_server, "accounts", "create", "lab")
    return "lab"


def make_key(serve: ScriptedServe, account: str, *arguments: str) -> str:
    key: str = manage(serve, "keys", "create", account, *arguments)["key"]
    return key


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
    scripted_server: ScriptedServe, hermes: ScriptedModel, account: str
) -> None:
    cap = 1500
    key = make_key(scripted_server, account, "--cap-tokens", str(cap))
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


def test_what_a_budget_still_buys_bounds_an_answer(
    scripted_server: ScriptedServe, hermes: ScriptedModel, account: str
) -> None:
    key = make_key(scripted_server, account, "--cap-tokens", "700")
    hermes.answers("count as far as it goes", WORDS)
    body = chat_body(
        model="hermes", messages=[{"role": "user", "content": "count as far as it goes"}]
    )
    headers = {"authorization": f"Bearer {key}"}
    url = f"{scripted_server.url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=headers, timeout=WAIT_TIMEOUT_S).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] <= 700
    refused = httpx.post(
        url, json=body | {"max_tokens": 5000}, headers=headers, timeout=WAIT_TIMEOUT_S
    )
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"


def test_a_dead_gateways_requests_are_paid_for_once(
    scripted_server: ScriptedServe, hermes: ScriptedModel, account: str
) -> None:
    """The neuron's account of them reaches the control."""
    key = make_key(scripted_server, account, "--cap-tokens", "100000")
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
            seen += '"content":"' in line
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


def test_a_revoked_key_is_refused_at_once(scripted_server: ScriptedServe, account: str) -> None:
    made = manage(scripted_server, "keys", "create", account)
    assert me(scripted_server, made["key"])["account"] == account
    headers = {"authorization": f"Bearer {made['key']}"}
    url = f"{scripted_server.url}/v1/models"
    assert httpx.get(url, headers=headers, timeout=30.0).status_code == 200
    manage(scripted_server, "keys", "revoke", made["prefix"])
    wait_until(
        lambda: httpx.get(url, headers=headers, timeout=30.0).status_code == 401, "it is refused"
    )
