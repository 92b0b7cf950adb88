"""The smallest OpenAI-compatible server, as a proxy's upstream: every chat gets as many tokens as
it requests, one for each step, like the neuron without a model's, and the usage on request.

    python -m benchmarks.gateway.upstream --port 8000

And LiteLLM's proxy before it as a peer, without its database. It pins other versions of our
requirements, so it has an environment of its own:

    python3 -m venv VENV && VENV/bin/pip install 'litellm[proxy]'
    scripts/bench-gateway --litellm VENV/bin/python
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.gateway.neuron import DEFAULT_ANSWER_TOKENS, PROMPT_TOKENS, STEP_S, WORD
from benchmarks.gateway.processes import HOST, Processes, RunningProcess
from benchmarks.ports import free_port

HEAD_END = b"\r\n\r\n"
LITELLM_KEY = "sk-benchmark"


def start(processes: Processes) -> RunningProcess:
    """Returns it listening. Raises ``ProcessFailedError``."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway.upstream", "--port", str(port)]
    running = processes.start("upstream", command, os.environ, port=port)
    running.wait_until_listening()
    return running


def start_litellm(
    python: Path, processes: Processes, *, model: str, upstream_port: int
) -> RunningProcess:
    """Returns the listening proxy. Raises ``ProcessFailedError``."""
    port = free_port()
    configuration = processes.folder / "litellm.yaml"
    configuration.write_text(_configuration(model, upstream_port))
    command = [str(python.parent / "litellm"), "--config", str(configuration)]
    command += ["--host", HOST, "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    # Its own prices instead of fetched ones, and no log line for each request.
    env = {
        "PATH": os.environ["PATH"],
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MASTER_KEY": LITELLM_KEY,
    }
    proxy = processes.start("litellm", command, env, port=port)
    proxy.wait_until_listening()
    return proxy


def _configuration(model: str, upstream_port: int) -> str:
    """YAML, of its JSON subset."""
    entry = {
        "model_name": model,
        "litellm_params": {
            "model": f"openai/{model}",
            "api_base": f"http://{HOST}:{upstream_port}/v1",
            "api_key": "none",
        },
    }
    return json.dumps({"model_list": [entry]})


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, kept alive."""
    try:
        while True:
            head = await reader.readuntil(HEAD_END)
            body = json.loads(await reader.readexactly(_content_length(head)))
            num_tokens = body.get("max_tokens") or DEFAULT_ANSWER_TOKENS
            if body.get("stream"):
                options = body.get("stream_options") or {}
                with_usage = bool(options.get("include_usage"))
                await _stream(writer, body["model"], num_tokens, with_usage=with_usage)
            else:
                await _whole(writer, body["model"], num_tokens)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _whole(writer: asyncio.StreamWriter, model: str, num_tokens: int) -> None:
    await asyncio.sleep(STEP_S * num_tokens)
    message = {"role": "assistant", "content": WORD * num_tokens}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    body = json.dumps(
        {**_base(model, "chat.completion"), "choices": [choice], "usage": _usage(num_tokens)}
    ).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )
    await writer.drain()


async def _stream(
    writer: asyncio.StreamWriter, model: str, num_tokens: int, *, with_usage: bool
) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    base = _base(model, "chat.completion.chunk")
    for _ in range(num_tokens):
        await asyncio.sleep(STEP_S)
        delta = {"role": "assistant", "content": WORD}
        _write_event(writer, {**base, "choices": [_choice(delta, None)]})
        await writer.drain()
    _write_event(writer, {**base, "choices": [_choice({}, "length")]})
    if with_usage:
        _write_event(writer, {**base, "choices": [], "usage": _usage(num_tokens)})
    _write_chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _base(model: str, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": model}


def _choice(delta: dict[str, str], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}


def _usage(num_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": num_tokens,
        "total_tokens": PROMPT_TOKENS + num_tokens,
    }


def _write_event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    _write_chunk(writer, b"data: %s\n\n" % json.dumps(event).encode())


def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def _run(port: int) -> None:
    server = await asyncio.start_server(serve, HOST, port)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(_run(parser.parse_args().port))


if __name__ == "__main__":
    main()
