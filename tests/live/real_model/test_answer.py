"""Answers of the real model that ``test_one_serve`` does not ask for: continued over a socket
and asked from a shell. Each field is tried in ``tests/strangers/fields``, Gemma 3 in
``tests/inference/loading/gguf/test_gemma.py``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import httpx
import openai

from tests.live.serving import (
    MODEL,
    QUESTION,
    REPOSITORY_DIR,
    WAIT_TIMEOUT_S,
    Serve,
    chat_body,
    serve_environment,
)


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
