"""Clients that are libraries: a program of a few lines for each, which reports what it tried, and
the README's examples with the newest version of each SDK; and a folder with the clients in it:

    folder/npm          node_modules and the programs that import from it
    folder/litellm …    a virtual environment for each Python client: together they would hold
                        one another at older versions

Nothing is installed anywhere else. What a package would fetch from elsewhere when it is installed
is not run, but for ``FINISHERS``, which only link a binary that came with the package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.strangers.docs.blocks import all_blocks, filled_in

PROGRAM_TIMEOUT_S, INSTALL_TIMEOUT_S = 180.0, 1200.0
TAIL_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Tried:
    client: str
    feature: str
    problem: str | None
    """``None``: it works."""


@dataclass(frozen=True, slots=True)
class Program:
    """``package`` is the one whose version is reported. Without a file it is the README's example
    with that SDK."""

    file: str
    package: str
    environment: str = "npm"
    server: Literal["scripted", "real"] = "scripted"
    """Whose engine follows a script; or which has real models."""


PROGRAMS = (
    Program("ai_sdk.mjs", "ai"),
    Program("openai_node.mjs", "openai"),
    Program("anthropic_node.mjs", "@anthropic-ai/sdk"),
    Program("ollama_node.mjs", "ollama"),
    Program("litellm_client.py", "litellm", "litellm"),
    Program("langchain_client.py", "langchain-openai", "langchain"),
    Program("llama_index_client.py", "llama-index-llms-openai-like", "llama_index"),
    Program("pydantic_ai_client.py", "pydantic-ai-slim", "pydantic_ai"),
    Program("instructor_client.py", "instructor", "instructor"),
    Program("openai_agents_client.py", "openai-agents", "openai_agents"),
    Program("real_model.mjs", "ai", server="real"),
    Program("real_model_client.py", "litellm", "litellm", "real"),
    Program("", "openai", "openai", "real"),
    Program("", "anthropic", "anthropic", "real"),
)


def try_program(program: Program, clients: Clients, url: str) -> Iterator[Tried]:
    """One row for each line that it printed, and one more where it did not end well."""
    try:
        client = f"{program.package} {clients.version(program.package, program.environment)}"
    except NotInstalledError as error:
        yield Tried(program.package, "installed", str(error))
        return
    is_node = program.environment == "npm"
    command = ["node" if is_node else clients.python_bin("python", program.environment)]
    if program.file:
        command.append(clients.programs_dir / program.file)
    else:
        command += ["-c", _readme(program.package, url)]
    environ = {"PYTHONDONTWRITEBYTECODE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    try:
        ended = subprocess.run(
            command,
            env=os.environ | environ | {"HELEXA_URL": url},
            cwd=clients.programs_dir,
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        yield Tried(client, "the whole program", str(error))
        return
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    for one in lines:
        yield Tried(client, one["feature"], one["problem"])
    output = (ended.stdout + ended.stderr)[-TAIL_CHARACTERS:]
    if not program.file:
        yield Tried(client, "README's example", None if "Paris" in ended.stdout else output)
    elif ended.returncode != 0 or not lines:
        yield Tried(client, "the whole program", f"exit {ended.returncode}: {output}")


def _readme(sdk: str, url: str) -> str:
    readme = (block for block in all_blocks() if block.page == "README.md")
    (example,) = (block for block in readme if f"from {sdk} import" in block.text)
    return filled_in(example.text, url=url, model="", key="")


PROGRAMS_DIR = Path(__file__).parent / "programs"
NPM_PACKAGES = (
    *("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod"),
    *("openai", "@anthropic-ai/sdk", "ollama"),
    *("@anthropic-ai/claude-code", "opencode-ai", "@openai/codex", "@qwen-code/qwen-code"),
)
FINISHERS = ("@anthropic-ai/claude-code/install.cjs", "opencode-ai/postinstall.mjs")
PYTHON_PACKAGES = {
    # LiteLLM imports mcp where tools are given, and does not ask for it.
    "litellm": ("litellm", "mcp", "langchain-openai", "langchain-anthropic"),
    "langchain": ("langchain-openai", "langchain-anthropic"),
    "llama_index": ("llama-index-llms-openai-like",),
    # With a newer anthropic Pydantic AI fails before it has sent anything.
    "pydantic_ai": ("pydantic-ai-slim[openai,anthropic]", "anthropic<1"),
    "instructor": ("instructor", "anthropic"),
    "openai_agents": ("openai-agents",),
    "llm": ("llm",),
    "openai": ("openai",),
    "anthropic": ("anthropic",),
    "aider": ("aider-chat",),
}
"""Environment to the packages installed into it."""


class NotInstalledError(Exception):
    """A folder that was kept lacks a client."""


class Clients:
    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.npm_dir = self.folder / "npm"
        self.programs_dir = self.npm_dir / "programs"
        """Node looks for packages from where a program lies."""

    def install(self) -> None:
        """Python's by uv: pip takes a quarter of an hour to choose the versions."""
        self.npm_dir.mkdir(parents=True, exist_ok=True)
        manifest = self.npm_dir / "package.json"
        manifest.write_text(json.dumps({"private": True, "type": "module"}))
        newest = [f"{name}@latest" for name in NPM_PACKAGES]
        quietly = ("--no-audit", "--no-fund", "--ignore-scripts")
        _run("npm", "install", *quietly, "--prefix", self.npm_dir, *newest, cwd=self.npm_dir)
        for finisher in FINISHERS:
            script = self.npm_dir / "node_modules" / finisher
            _run("node", script, cwd=script.parent)
        _run(sys.executable, "-m", "venv", self.folder / "uv")
        _run(self.python_bin("pip", "uv"), "install", "--quiet", "uv")
        uv = self.python_bin("uv", "uv")
        for name, packages in PYTHON_PACKAGES.items():
            _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, self.folder / name)
            python = self.python_bin("python", name)
            _run(uv, "pip", "install", "--quiet", "--python", python, *packages)

    def take_programs(self) -> None:
        self.programs_dir.mkdir(exist_ok=True)
        for program in PROGRAMS_DIR.glob("*.*"):
            (self.programs_dir / program.name).write_bytes(program.read_bytes())

    def npm_bin(self, name: str) -> Path:
        return self.npm_dir / "node_modules" / ".bin" / name

    def python_bin(self, name: str, environment: str) -> Path:
        return self.folder / environment / "bin" / name

    def version(self, package: str, environment: str) -> str:
        """Raises ``NotInstalledError``."""
        is_npm = environment == "npm"
        manifest = self.npm_dir / "node_modules" / package / "package.json"
        python = self.python_bin("python", environment)
        if not (manifest if is_npm else python).is_file():
            raise NotInstalledError(f"{package} is not installed in {self.folder}")
        if is_npm:
            return str(json.loads(manifest.read_text())["version"])
        code = f"import importlib.metadata as found; print(found.version({package!r}))"
        return subprocess.check_output([python, "-c", code]).decode().strip()


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True, timeout=INSTALL_TIMEOUT_S, stdout=sys.stderr)
