"""Every block of the documentation is marked with how it is executed, or why it is not, and is
correct as far as reading it can show."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from argparse import ArgumentParser
from functools import cache
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandError

from helexa_acp.config import load_config
from helexa_site.bootstrap.arguments import parse_doctor, parse_serve
from tests.cases import each_case
from tests.strangers.docs import blocks

BLOCKS = blocks.all_blocks()
SHELL = [block for block in BLOCKS if block.language == "sh"]
LANGUAGES = {"sh", "python", "json", "toml", "yaml"}
BEFORE_DJANGO = {"serve": parse_serve, "doctor": parse_doctor}
WITHOUT_PARSER = {"neuron", "test", "version", "environment", "help"}
"""Commands of ours that need a real value, or hand everything on."""
MANAGE = re.compile(r"^(?:python3 )?manage\.py (?P<words>.+)$")
TESTS = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))


@each_case("block", BLOCKS, ids=str)
def test_a_block_declares_how_it_is_run(block: blocks.Block) -> None:
    assert block.scenario or block.reason, (
        f"{block}: the line before it is neither <!-- run: SCENARIO --> nor "
        "<!-- not run: REASON -->"
    )
    assert not block.scenario or f'"{block.scenario}"' in TESTS, f"{block}: no test names it"
    assert block.language in LANGUAGES or block.reason or block.scenario == "first-start", block


@each_case("block", [one for one in BLOCKS if one.language], ids=str)
def test_a_block_is_of_its_language(block: blocks.Block) -> None:
    match block.language:
        case "sh":
            checked = subprocess.run(
                ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
            )
            assert checked.stderr == ""
        case "python":
            compile(block.text, str(block), "exec")
        case "json":
            json.loads(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "yaml":
            yaml.safe_load(block.text)


@cache
def parser_of(command: str) -> ArgumentParser:
    app = get_commands()[command]
    assert isinstance(app, str)
    return load_command_class(app, command).create_parser("manage.py", command)


@each_case("block", SHELL, ids=str)
def test_commands_take_their_arguments(
    block: blocks.Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own parsers decide, which know every flag."""
    monkeypatch.delenv("REDIS_URL", raising=False)  # with it serve has nothing to share
    for line in blocks.commands_of(block):
        match = MANAGE.match(line.partition("|")[0].strip())
        if match is None:
            continue
        command, *words = shlex.split(match["words"])
        if command in BEFORE_DJANGO:
            BEFORE_DJANGO[command](words)
        elif command not in WITHOUT_PARSER:
            try:
                parser_of(command).parse_args(words)
            except CommandError as error:
                pytest.fail(f"{block}: {line}: {error}")


@each_case("page", blocks.pages())
def test_commands_in_the_prose_exist(page: str) -> None:
    """Their flags as well. What a flag takes is a placeholder there."""
    for line in blocks.inline_commands(blocks.text_of(page)):
        if line.startswith("scripts/"):
            script = blocks.REPOSITORY_DIR / line.split()[0]
            assert os.access(script, os.X_OK), f"{page}: {line}"
            continue
        match = MANAGE.match(line)
        assert match is not None, f"{page}: {line}"
        command, *words = match["words"].split()
        if command in BEFORE_DJANGO or command in WITHOUT_PARSER or not command.islower():
            continue
        assert command in get_commands(), f"{page}: {line}"
        known = flags_of(parser_of(command))
        for flag in re.findall(r"--[a-z][a-z-]*", " ".join(words)):
            assert flag in known, f"{page}: {line}: {flag}"


def flags_of(parser: ArgumentParser) -> set[str]:
    found = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                found |= flags_of(inner)
    return found


@each_case("scenario", ["claude-code", "opencode", "codex", "qwen-code", "aider", "llm"])
def test_settings_of_clients_name_the_server_and_the_model(scenario: str) -> None:
    filled = blocks.settings_of(
        scenario, url="http://gateway:1", model="some-model", key="some-key"
    )
    assert "http://gateway:1" in filled
    assert "some-model" in filled
    assert "31313" not in filled


def test_the_editor_bridge_reads_its_example(tmp_path: Path) -> None:
    for block in BLOCKS:
        if block.scenario == "editor-bridge":
            file = tmp_path / "config.toml"
            file.write_text(block.text)
            config = load_config({"HELEXA_ACP_CONFIG_PATH": str(file), "HELEXA_API_KEY": "KEY"})
            assert config.default.name == "home"
            assert config.default.api_key == "KEY"
