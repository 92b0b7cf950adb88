"""The same application under another ASGI server, beside the running one."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.live.second_gateway import second_gateway
from tests.live.serving import WAIT_TIMEOUT_S, Serve, chat_body, wait_until


@pytest.fixture
def uvicorn_url(helexa: Serve) -> Iterator[str]:
    with second_gateway(helexa) as url:
        yield url


def test_answers_and_streams(uvicorn_url: str) -> None:
    url = f"{uvicorn_url}/v1/chat/completions"
    answer = httpx.post(url, json=chat_body(), timeout=WAIT_TIMEOUT_S)
    assert "Paris" in answer.text
    stream = httpx.post(url, json=chat_body(stream=True), timeout=WAIT_TIMEOUT_S)
    assert stream.text.rstrip().endswith("data: [DONE]")
    assert httpx.get(f"{uvicorn_url}/admin/login/", timeout=WAIT_TIMEOUT_S).status_code == 200


def test_frees_what_a_client_leaves(uvicorn_url: str, helexa: Serve) -> None:
    body = chat_body(stream=True, max_tokens=1500, ignore_eos=True)
    url = f"{uvicorn_url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=WAIT_TIMEOUT_S) as response:
        lines = response.iter_lines()
        next(lines)
        wait_until(lambda: (helexa.replica() or {})["kv_blocks_used"] > 0, "decoding")
    wait_until(lambda: (helexa.replica() or {})["kv_blocks_used"] == 0, "its blocks are free")
