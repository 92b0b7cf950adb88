"""The same application under another ASGI server, beside the running one."""

from __future__ import annotations

import httpx

from tests.live.scripted.model import ScriptedModel
from tests.live.serving import WAIT_TIMEOUT_S, chat_body


def test_answers_and_streams(uvicorn_url: str, hermes: ScriptedModel) -> None:
    question = "Who serves this?"
    hermes.answers(question, "It is uvicorn.")
    fields = {"model": hermes.name, "messages": [{"role": "user", "content": question}]}
    url = f"{uvicorn_url}/v1/chat/completions"
    answer = httpx.post(url, json=chat_body(**fields), timeout=WAIT_TIMEOUT_S)
    assert "It is uvicorn." in answer.text
    stream = httpx.post(url, json=chat_body(stream=True, **fields), timeout=WAIT_TIMEOUT_S)
    assert stream.text.rstrip().endswith("data: [DONE]")
    assert httpx.get(f"{uvicorn_url}/admin/login/", timeout=WAIT_TIMEOUT_S).status_code == 200
