"""The smallest OpenAI-compatible server, as a proxy's upstream: every chat gets as many tokens as
it requests, one for each step, like the neuron without a model's, and the usage on request.

    python -m benchmarks.gateway.upstream PORT

And LiteLLM's proxy before it as a peer, without its database. It pins other versions of our
requirements, so it has an environment of its own:

    python3 -m venv VENV && VENV/bin/pip install 'litellm[proxy]'
    scripts/bench-gateway --litellm VENV/bin/python
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.gateway.neuron import DEFAULT_ANSWER_TOKENS, PROMPT_TOKENS, STEP_S, WORD
from benchmarks.gateway.stage import Processes, RunningProcess
from benchmarks.ports import HOST, free_port

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: "
LITELLM_KEY = "sk-benchmark"


def start(processes: Processes) -> RunningProcess:
    """Returns it listening. Raises ``ProcessFailedError``."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway.upstream", str(port)]
    return processes.start("upstream", command, os.environ, port=port)


def start_litellm(
    python: Path, processes: Processes, *, model: str, upstream_port: int
) -> RunningProcess:
    """Returns the listening proxy. Raises ``ProcessFailedError``."""
    port = free_port()
    upstream = {
        "model": f"openai/{model}",
        "api_base": f"http://{HOST}:{upstream_port}/v1",
        "api_key": "none",
    }
    configuration = processes.folder / "litellm.yaml"  # YAML's subset JSON
    configuration.write_text(
        json.dumps({"model_list": [{"model_name": model, "litellm_params": upstream}]})
    )
    command = [str(python.parent / "litellm"), "--config", str(configuration)]
    command += ["--host", HOST, "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    # Its own prices instead of fetched ones, and no log line for each request.
    env = {
        "PATH": os.environ["PATH"],
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MASTER_KEY": LITELLM_KEY,
    }
    return processes.start("litellm", command, env, port=port)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            body = json.loads(await reader.readexactly(int(length[1]) if length else 0))
            if body.get("stream"):
                await _stream(writer, body)
            else:
                await _whole(writer, body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _whole(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    num_tokens = body.get("max_tokens") or DEFAULT_ANSWER_TOKENS
    await asyncio.sleep(STEP_S * num_tokens)
    message = {"role": "assistant", "content": WORD * num_tokens}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    answer = _object(body, "chat.completion", [choice], usage=_usage(num_tokens))
    head = OK + b"application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
    writer.write(head + answer)


async def _stream(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    num_tokens = body.get("max_tokens") or DEFAULT_ANSWER_TOKENS
    writer.write(OK + b"text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def send(choices: list[dict[str, Any]], **more: Any) -> None:
        _write_event(writer, _object(body, "chat.completion.chunk", choices, **more))

    delta = {"role": "assistant", "content": WORD}
    for _ in range(num_tokens):
        await asyncio.sleep(STEP_S)
        send([{"index": 0, "delta": delta, "finish_reason": None}])
        await writer.drain()
    send([{"index": 0, "delta": {}, "finish_reason": "length"}])
    if (body.get("stream_options") or {}).get("include_usage"):
        send([], usage=_usage(num_tokens))
    _write_event(writer, b"[DONE]")
    writer.write(b"0\r\n\r\n")


def _object(body: dict[str, Any], kind: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    base = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}
    return json.dumps({**base, "choices": choices, **more}).encode()


def _usage(num_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": num_tokens,
        "total_tokens": PROMPT_TOKENS + num_tokens,
    }


def _write_event(writer: asyncio.StreamWriter, data: bytes) -> None:
    event = b"data: %s\n\n" % data
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, HOST, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
