"""A key's requests on a whole server whose gateway is killed: who pays in the end. That a cap is
never passed is in ``tests/inference/gateway/request/test_reserving.py``."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.live.catalogue import run
from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.serving import wait_until

WORDS = "".join(f"{number} " for number in range(400))
MAKE_KEY = """
import sys
from django.core.management import call_command
call_command("accounts", "create", "lab", stdout=sys.stderr)
call_command("keys", "create", "lab", "--cap-tokens", "100000")
"""


def test_a_dead_gateways_requests_are_paid_for_once(
    scripted_server: ScriptedServe, hermes: ScriptedModel
) -> None:
    key = run(scripted_server, MAKE_KEY).strip()
    headers = {"authorization": f"Bearer {key}"}

    def asked(path: str) -> dict[str, Any]:
        found = httpx.get(f"{scripted_server.url}{path}", headers=headers, timeout=30.0)
        body: dict[str, Any] = found.raise_for_status().json()
        return body

    def budget() -> dict[str, Any]:
        (found,) = asked("/api/me")["budgets"]
        return dict(found)

    hermes.answers("count slowly", WORDS, token_s=0.02)
    question = [{"role": "user", "content": "count slowly"}]
    with (
        pytest.raises(httpx.HTTPError),
        scripted_server.stream(headers, model="hermes", messages=question) as stream,
    ):
        for _ in range(5):
            stream.next_text()
        scripted_server.kill("gateway")
        list(stream)
    wait_until(scripted_server.is_healthy, "a new gateway")
    wait_until(lambda: asked("/api/usage?by=key")["total"]["requests"], "it is settled")
    wait_until(lambda: budget()["reserved"] == 0, "nothing is held")
    total = asked("/api/usage?by=key")["total"]
    assert total["requests"] == 1
    assert total["completion_tokens"] >= 5
    assert budget()["spent"] == total["prompt_tokens"] + total["completion_tokens"]
