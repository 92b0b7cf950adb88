"""``manage.py connect``: a client's settings for a running server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tomllib
import urllib.error
import urllib.request
from dataclasses import replace
from email.message import Message
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from fleet.management.clients import (
    ANY_KEY,
    CLIENTS,
    NoModelError,
    Target,
    UnmergeableError,
    chosen_card,
    merged_json,
    merged_toml,
    settings_text,
)
from helexa_site.exit_codes import ExitCode
from inference import proxies
from tests.cases import each_case
from tests.metering.commands.command_output import output, printed
from tests.strangers.docs.blocks import exported, settings_of

URL = "http://fleet.example:31313"
LIMIT = {"context": 32768, "input": 24576, "output": 8192}
CODER = {"id": "coder", "aliases": ["code"], "tool_call": True, "limit": LIMIT, "loaded": True}
TINY = {"id": "tiny", "tool_call": False, "limit": LIMIT, "loaded": True}
COLD = {"id": "cold", "tool_call": None, "limit": None, "loaded": False}
READER = {"id": "bge", "capabilities": ["embeddings"], "loaded": True}
TARGET = Target(url=URL, model="coder", key="hx-1", context_tokens=32768, output_tokens=8192)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the server's ``GET /v1/models`` lists."""
    cards = [READER, TINY, CODER]

    def open_url(request: urllib.request.Request, timeout: float) -> BytesIO:
        assert request.full_url == f"{URL}/v1/models"
        return BytesIO(json.dumps({"data": cards}).encode())

    monkeypatch.setattr(proxies, "open_url", open_url)
    return cards


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def connect(*words: str) -> str:
    return "".join(printed("connect", "--url", URL, "--key", "hx-1", *words))


@each_case(
    ("client", "scenario"), [("claude", "claude-code"), ("qwen", "qwen-code"), ("aider", "aider")]
)
def test_variables_are_those_of_the_documentation(client: str, scenario: str) -> None:
    documented = exported(settings_of(scenario, url=URL, model="coder", key="hx-1"))
    found = CLIENTS[client](TARGET)
    assert documented.items() <= found.environment.items()
    assert exported(settings_text(client, found)) == dict(found.environment)
    odd = CLIENTS[client](replace(TARGET, model="a model's $name"))
    words = shlex.split(settings_text(client, odd), comments=True)
    assert {f"{name}={value}" for name, value in odd.environment.items()} <= set(words)


def test_files_are_those_of_the_documentation() -> None:
    def documented(scenario: str) -> str:
        return settings_of(scenario, url=URL, model="coder", key="hx-1")

    opencode = CLIENTS["opencode"](TARGET)
    assert opencode.file is not None
    assert json.loads(documented("opencode")).items() <= dict(opencode.file.values).items()
    assert json.loads(opencode.instead_of_file["OPENCODE_CONFIG_CONTENT"]) == opencode.file.values
    codex = CLIENTS["codex"](TARGET)
    assert codex.file is not None
    assert tomllib.loads(documented("codex")).items() <= dict(codex.file.values).items()
    flags = "\n".join(codex.command[2::2])
    assert tomllib.loads(flags) == codex.file.values
    assert CLIENTS["llm"](Target(url=URL, model="coder")).pasted_text.replace('"', "") == (
        documented("llm")
    )


def test_a_model_is_chosen_that_the_client_can_use() -> None:
    cards = [READER, COLD, TINY, CODER]
    assert chosen_card(cards, None, "claude") is CODER
    assert chosen_card(cards, None, "aider") is TINY
    assert chosen_card([READER, COLD], None, "codex") is COLD
    assert chosen_card(cards, "code", "claude")["id"] == "code"
    for wanted, client, why in (
        ("tiny", "claude", "tiny has no place for them; cold, coder will do"),
        ("cold", "zed", "cold was never loaded; tiny, coder will do"),
        ("codr", "aider", "no model codr is offered; there is code"),
        ("bge", "aider", "bge writes no text"),
    ):
        with pytest.raises(NoModelError, match=why):
            chosen_card(cards, wanted, client)
    with pytest.raises(NoModelError, match="no model that is offered will do: claude sends tools"):
        chosen_card([TINY], None, "claude")
    with pytest.raises(NoModelError, match="no model that writes text"):
        chosen_card([READER], None, "aider")


def test_json_keeps_everything_else() -> None:
    before = '{"theme": "dark", "env": {"A": "1", "B": "2"}, "list": [1]}'
    after = json.loads(merged_json(before, {"env": {"B": "3"}, "list": [2]}))
    assert after == {"theme": "dark", "env": {"A": "1", "B": "3"}, "list": [2]}
    for text in ('// a comment\n{"a": 1}', '{"a": 1,}', "[]", "null"):
        with pytest.raises(UnmergeableError):
            merged_json(text, {"a": 2})


def test_toml_keeps_its_comments_and_contradicts_nothing() -> None:
    values = {"model": "m", "providers": {"helexa": {"url": "u", "n": 3}}}
    before = "# mine\n[other]\nx = 1\n"
    after = merged_toml(before, values)
    assert tomllib.loads(after) == {"other": {"x": 1}, **values}
    assert "# mine" in after
    assert merged_toml(after, values) == after
    for text, why in (
        ('model = "n"', "it sets model to something else"),
        ("[providers.helexa]\nurl = 'v'\n", r"\[providers.helexa\] has other values"),
        ("model = ", "no TOML"),
    ):
        with pytest.raises(UnmergeableError, match=why):
            merged_toml(text, values)


@each_case("client", CLIENTS)
def test_settings_name_the_server_the_model_and_the_key(client: str, offered) -> None:
    printed = connect(client, "coder")
    assert URL in printed and "hx-1" in printed
    assert "coder" in printed or client == "open-webui"  # which lists all


def test_settings_are_written_once_and_keep_the_rest(offered, home: Path) -> None:
    path = home / ".claude" / "settings.json"
    assert f"{path} points claude at the server." in connect("claude", "--write")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "already" in connect("claude", "--write")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": "mine"}))
    path.chmod(0o644)
    offered[:] = [{**CODER, "id": "other"}]
    connect("claude", "--write")
    after = json.loads(path.read_text())
    assert (after["model"], after["env"]["ANTHROPIC_MODEL"]) == ("mine", "other")
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_link_to_the_file_stays_one_and_what_cannot_be_merged_stays(offered, home: Path) -> None:
    link, path = home / ".codex" / "config.toml", home / ".config" / "zed" / "settings.json"
    for each in (link, path):
        each.parent.mkdir(parents=True)
    target = home / "dotfiles.toml"
    target.write_text("# mine\n")
    link.symlink_to(target)
    offered[:] = [CODER]
    assert "HELEXA_API_KEY" in connect("codex", "--write")
    assert link.is_symlink() and tomllib.loads(target.read_text())["model"] == "coder"
    path.write_text("// mine\n{}")
    with pytest.raises(CommandError, match="stays as it is, since it is no plain JSON"):
        connect("zed", "--write")
    assert path.read_text() == "// mine\n{}"
    with pytest.raises(CommandError, match="aider has no settings file"):
        connect("aider", "--write")


def test_a_client_is_started(offered, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda *call: started.append(call))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    connect("opencode", "--run", "run", "--model", "x")
    program, words, environment = started.pop()
    assert (program, words) == ("opencode", ["opencode", "run", "--model", "x"])
    assert json.loads(environment["OPENCODE_CONFIG_CONTENT"])["model"] == "helexa/coder"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CommandError, match="claude is not installed"):
        connect("claude", "--run")
    with pytest.raises(CommandError, match="not started from a terminal"):
        connect("zed", "--run")


def test_a_server_that_wants_a_key_and_one_that_wants_none(
    offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"export OPENAI_API_KEY={ANY_KEY}\n" in output("connect", "qwen", "--url", URL)

    def open_url(request: urllib.request.Request, timeout: float) -> BytesIO:
        body = BytesIO(b'{"error": {"message": "This needs an API key."}}')
        raise urllib.error.HTTPError(URL, 401, "", Message(), body)

    monkeypatch.setattr(proxies, "open_url", open_url)
    with pytest.raises(CommandError, match=r"API key. --key names one, .* keys create") as caught:
        call_command("connect", "claude", "--url", URL)
    assert caught.value.returncode == ExitCode.DENIED
