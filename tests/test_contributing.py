"""``CONTRIBUTING.md`` and the pre-commit hook name checks that exist."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_hook_calls_the_script_that_ci_calls() -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (entry,) = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    assert os.access(ROOT / entry, os.X_OK)
    assert re.search(rf"^{entry}$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_every_path_and_module_of_the_page_exists() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    commands = re.findall(r"`([^`]+)`", prose)
    paths = [
        word
        for command in commands
        for word in command.split()
        if re.match(r"(scripts|tests|docs|acp|\.ci)/|manage\.py$", word)
    ]
    modules = [found for command in commands for found in re.findall(r"-m ([\w.]+)", command)]
    assert "scripts/check" in paths and "inference.wire.openapi" in modules
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [name for name in modules if "." in name and not importlib.util.find_spec(name)] == []
