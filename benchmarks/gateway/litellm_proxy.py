"""LiteLLM's proxy as a peer: without its database, before the smallest possible upstream.

It pins other versions of our requirements, so it has an environment of its own:

    python3 -m venv VENV && VENV/bin/pip install 'litellm[proxy]'
    scripts/bench-gateway --litellm VENV/bin/python
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.gateway.processes import HOST, Processes, RunningProcess
from benchmarks.ports import free_port

NAME = "litellm"
MASTER_KEY = "sk-benchmark"
AUTHORIZATION = f"Bearer {MASTER_KEY}"


def start(python: Path, processes: Processes, *, model: str, upstream_port: int) -> RunningProcess:
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
        "LITELLM_MASTER_KEY": MASTER_KEY,
    }
    proxy = processes.start(NAME, command, env, port=port)
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
