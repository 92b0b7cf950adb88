"""Clients that are libraries: a program of a few lines for each, which reports what it tried, and
the README's examples with the newest version of each SDK."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from tests.live.clients.documented import filled_in
from tests.live.clients.installed import Clients, NotInstalledError
from tests.strangers.docs.blocks import all_blocks

PROGRAM_TIMEOUT_S = 180.0
OUTPUT_TAIL_CHARACTERS = 600
SDKS = ("openai", "anthropic")
"""The package of each SDK, and its environment."""


@dataclass(frozen=True, slots=True)
class Tried:
    client: str
    version: str
    feature: str
    problem: str | None
    """``None``: it works."""


def print_table(rows: Iterable[Tried]) -> None:
    table = Table("client", "version", "feature", "result")
    for row in rows:
        table.add_row(row.client, row.version, row.feature, row.problem or "works")
    Console(width=None if Console().is_terminal else 160).print(table)


@dataclass(frozen=True, slots=True)
class Program:
    """``package`` is the one whose version is reported."""

    file: str
    package: str
    environment: str = "npm"
    server: Literal["scripted", "real"] = "scripted"
    """Whose engine follows a script; which has real models."""

    def version(self, clients: Clients) -> str:
        if self.environment == "npm":
            return clients.npm_version(self.package)
        return clients.python_version(self.package, self.environment)

    def runner(self, clients: Clients) -> str | Path:
        if self.environment == "npm":
            return "node"
        return clients.python_bin("python", self.environment)


PROGRAMS = (
    Program("ai_sdk.mjs", "ai"),
    Program("openai_node.mjs", "openai"),
    Program("anthropic_node.mjs", "@anthropic-ai/sdk"),
    Program("ollama_node.mjs", "ollama"),
    Program("litellm_client.py", "litellm", "litellm"),
    Program("langchain_client.py", "langchain-openai", "langchain"),
    Program("real_model.mjs", "ai", server="real"),
    Program("real_model_client.py", "litellm", "litellm", "real"),
)


def try_program(program: Program, clients: Clients, url: str) -> Iterator[Tried]:
    """One row for each line that it printed, and one more where it did not end well."""
    try:
        version = program.version(clients)
    except NotInstalledError as error:
        yield Tried(program.package, "", "installed", str(error))
        return
    environ = os.environ | {
        "HELEXA_URL": url,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    try:
        ended = subprocess.run(
            [program.runner(clients), clients.programs_dir / program.file],
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
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    for one in lines:
        yield Tried(program.package, version, one["feature"], one["problem"])
    if ended.returncode != 0 or not lines:
        problem = f"exit {ended.returncode}: {ended.stderr[-OUTPUT_TAIL_CHARACTERS:]}"
        yield Tried(program.package, version, "the whole program", problem)


def try_readme(sdk: str, clients: Clients, url: str) -> Iterator[Tried]:
    try:
        version = clients.python_version(sdk, sdk)
    except NotInstalledError as error:
        yield Tried(sdk, "", "installed", str(error))
        return
    (example,) = (
        block
        for block in all_blocks()
        if block.page == "README.md" and f"from {sdk} import" in block.text
    )
    code = filled_in(example.text, url=url, model="", key="")
    ended = subprocess.run(
        [clients.python_bin("python", sdk), "-c", code],
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    output = ended.stdout + ended.stderr
    problem = None if "Paris" in ended.stdout else output[-OUTPUT_TAIL_CHARACTERS:]
    yield Tried(sdk, version, "README's example", problem)
