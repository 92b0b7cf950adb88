"""Clients that are libraries: a program of a few lines for each, which tells what it tried."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.live.clients.installed import Clients
from tests.live.clients.tried import Tried

PROGRAM_TIMEOUT_S = 180.0
OUTPUT_TAIL_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Program:
    """``package`` is the one whose version is told."""

    file: str
    package: str
    server: Literal["scripted", "real", "locked"] = "scripted"
    """Whose engine follows a script; which has real models; which wants a key."""

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")


PROGRAMS = (
    Program("ai_sdk.mjs", "ai"),
    Program("openai_node.mjs", "openai"),
    Program("anthropic_node.mjs", "@anthropic-ai/sdk"),
    Program("litellm_client.py", "litellm"),
    Program("langchain_client.py", "langchain-openai"),
    Program("llama_index_client.py", "llama-index-llms-openai-like"),
    Program("pydantic_ai_client.py", "pydantic-ai-slim"),
    Program("instructor_client.py", "instructor"),
    Program("openai_agents_client.py", "openai-agents"),
    Program("real_model.mjs", "ai", "real"),
    Program("real_model_client.py", "litellm", "real"),
    Program("wrong_key.mjs", "ai", "locked"),
    Program("wrong_key_client.py", "litellm", "locked"),
)


def try_program(program: Program, clients: Clients, url: str) -> Iterator[Tried]:
    """One row for each line that it printed, and one more where it did not end well."""
    find_version = clients.python_version if program.is_python else clients.npm_version
    version = find_version(program.package)
    runner = clients.python_bin("python") if program.is_python else "node"
    environ = os.environ | {
        "HELEXA_URL": url,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    try:
        ended = subprocess.run(
            [runner, clients.programs_dir / program.file],
            env=environ,
            cwd=clients.programs_dir,
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        problem = f"not done within {PROGRAM_TIMEOUT_S:g} s"
        yield Tried(program.package, version, "the whole program", problem)
        return
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    for one in told:
        yield Tried(program.package, version, one["feature"], one["problem"])
    if ended.returncode != 0 or not told:
        problem = f"exit {ended.returncode}: {ended.stderr[-OUTPUT_TAIL_CHARACTERS:]}"
        yield Tried(program.package, version, "the whole program", problem)
