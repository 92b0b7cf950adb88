"""A folder with the clients in it, each in the newest version its registry has.

    folder/npm          node_modules and the programs that import from it
    folder/litellm …    a virtual environment for each Python client: together they would hold
                        one another at older versions

Nothing is installed anywhere else. What a package would fetch from elsewhere when it is installed
is not run, but for ``FINISHERS``, which only link a binary that came with the package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAMS_DIR = Path(__file__).parent / "programs"
INSTALL_TIMEOUT_S = 1200.0

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
        self.npm_dir.mkdir(parents=True, exist_ok=True)
        manifest = self.npm_dir / "package.json"
        manifest.write_text(json.dumps({"private": True, "type": "module"}))
        newest = [f"{name}@latest" for name in NPM_PACKAGES]
        quietly = ("--no-audit", "--no-fund", "--ignore-scripts")
        _run("npm", "install", *quietly, "--prefix", str(self.npm_dir), *newest, cwd=self.npm_dir)
        for finisher in FINISHERS:
            script = self.npm_dir / "node_modules" / finisher
            _run("node", str(script), cwd=script.parent)
        self._install_python()
        self.take_programs()

    def _install_python(self) -> None:
        """Installs by uv: pip takes a quarter of an hour to choose the versions."""
        _run(sys.executable, "-m", "venv", str(self.folder / "uv"))
        _run(str(self.python_bin("pip", "uv")), "install", "--quiet", "uv")
        uv = str(self.python_bin("uv", "uv"))
        for name, packages in PYTHON_PACKAGES.items():
            python = str(self.python_bin("python", name))
            _run(
                uv,
                "venv",
                "--quiet",
                "--clear",
                "--python",
                sys.executable,
                str(self.folder / name),
            )
            _run(uv, "pip", "install", "--quiet", "--python", python, *packages)

    def take_programs(self) -> None:
        self.programs_dir.mkdir(exist_ok=True)
        for program in PROGRAMS_DIR.iterdir():
            if program.is_file():
                (self.programs_dir / program.name).write_bytes(program.read_bytes())

    def npm_bin(self, name: str) -> Path:
        return self.npm_dir / "node_modules" / ".bin" / name

    def python_bin(self, name: str, environment: str) -> Path:
        return self.folder / environment / "bin" / name

    def npm_version(self, package: str) -> str:
        """Raises ``NotInstalledError``."""
        manifest = self.npm_dir / "node_modules" / package / "package.json"
        if not manifest.is_file():
            raise NotInstalledError(f"{package} is not installed in {self.folder}")
        version: str = json.loads(manifest.read_text())["version"]
        return version

    def python_version(self, package: str, environment: str) -> str:
        """Raises ``NotInstalledError``."""
        if not self.python_bin("python", environment).exists():
            raise NotInstalledError(f"{package} is not installed in {self.folder}")
        code = f"import importlib.metadata as found; print(found.version({package!r}))"
        output = subprocess.check_output([self.python_bin("python", environment), "-c", code])
        return output.decode().strip()


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True, timeout=INSTALL_TIMEOUT_S, stdout=sys.stderr)
