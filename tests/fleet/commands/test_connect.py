"""``manage.py connect``: a client's settings for a running server; ``manage.py chat``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from email.message import Message
from http.client import IncompleteRead
from io import BytesIO, StringIO
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
from fleet.management.commands.chat import Answer, ChatClient
from helexa_site.management.base import ExitCode
from inference import proxies
from tests.metering.commands.command_output import output, printed
from tests.strangers.docs.blocks import exported, settings_of

URL = "http://fleet.example:31313"
LIMIT = {"context": 32768, "input": 24576, "output": 8192}
CODER = {"id": "coder", "aliases": ["code"], "tool_call": True, "limit": LIMIT, "loaded": True}
TINY = {"id": "tiny", "tool_call": False, "limit": LIMIT, "loaded": True}
COLD = {"id": "cold", "tool_call": None, "limit": None, "loaded": False}
READER = {"id": "bge", "capabilities": ["embeddings"], "loaded": True}
TARGET = Target(url=URL, model="coder", key="hx-1", context_tokens=32768, output_tokens=8192)


class Server(list[dict[str, Any]]):
    """Its models, which ``GET /v1/models`` lists; and what it answers instead, where that is set:
    a status with a body, or none at all."""

    answer: tuple[int, bytes] | None = None
    chat: bytes = b""

    def open_url(self, request: urllib.request.Request, timeout: float) -> BytesIO:
        self.asked = request
        if request.full_url != f"{URL}/v1/models":
            return BytesIO(self.chat)
        status, body = self.answer or (200, json.dumps({"data": self}).encode())
        if status == 0:
            raise urllib.error.URLError("refused")
        if status != 200:
            raise urllib.error.HTTPError(URL, status, "No", Message(), BytesIO(body))
        return BytesIO(body)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server([READER, TINY, CODER])
    monkeypatch.setattr(proxies, "open_url", server.open_url)
    return server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def connect(*words: str) -> str:
    return "".join(printed("connect", "--url", URL, "--key", "hx-1", *words))


def test_settings_are_those_of_the_documentation() -> None:
    def documented(scenario: str) -> str:
        return settings_of(scenario, url=URL, model="coder", key="hx-1")

    for client, scenario in (("claude", "claude-code"), ("qwen", "qwen-code"), ("aider", "aider")):
        found = CLIENTS[client](TARGET)
        assert exported(documented(scenario)).items() <= found.environment.items()
        assert exported(settings_text(client, found)) == dict(found.environment)
        odd = CLIENTS[client](replace(TARGET, model="a model's $name"))
        words = shlex.split(settings_text(client, odd), comments=True)
        assert {f"{name}={value}" for name, value in odd.environment.items()} <= set(words)
    opencode, codex = CLIENTS["opencode"](TARGET), CLIENTS["codex"](TARGET)
    assert opencode.file is not None and codex.file is not None
    assert json.loads(documented("opencode")).items() <= dict(opencode.file.values).items()
    assert json.loads(opencode.instead_of_file["OPENCODE_CONFIG_CONTENT"]) == opencode.file.values
    assert tomllib.loads(documented("codex")).items() <= dict(codex.file.values).items()
    assert tomllib.loads("\n".join(codex.command[2::2])) == codex.file.values
    llm = CLIENTS["llm"](Target(url=URL, model="coder"))
    assert llm.pasted_text.replace('"', "") == documented("llm")


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
    before = '{"theme": "dark", "env": {"A": "1", "B": "2"}, "list": [1]}'
    after = json.loads(merged_json(before, {"env": {"B": "3"}, "list": [2]}))
    assert after == {"theme": "dark", "env": {"A": "1", "B": "3"}, "list": [2]}
    for text in ('// a comment\n{"a": 1}', '{"a": 1,}', "[]", "null"):
        with pytest.raises(UnmergeableError):
            merged_json(text, {"a": 2})
    values = {"model": "m", "providers": {"helexa": {"url": "u", "n": 3}}}
    merged = merged_toml("# mine\n[other]\nx = 1\n", values)
    assert tomllib.loads(merged) == {"other": {"x": 1}, **values}
    assert "# mine" in merged and merged_toml(merged, values) == merged
    for text, why in (
        ('model = "n"', "it sets model to something else"),
        ("[providers.helexa]\nurl = 'v'\n", r"\[providers.helexa\] has other values"),
        ("model = ", "no TOML"),
    ):
        with pytest.raises(UnmergeableError, match=why):
            merged_toml(text, values)


def test_settings_are_written_once_and_keep_the_rest(offered, home: Path) -> None:
    for client in CLIENTS:
        text = connect(client, "coder")
        assert URL in text and "hx-1" in text
        assert "coder" in text or client == "open-webui"  # which lists all
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


def test_a_client_is_started_or_named_what_it_lacks(offered, monkeypatch) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda *call: started.append(call))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    connect("opencode", "--run", "run", "--model", "x")
    program, words, environment = started.pop()
    assert (program, words) == ("opencode", ["opencode", "run", "--model", "x"])
    assert json.loads(environment["OPENCODE_CONFIG_CONTENT"])["model"] == "helexa/coder"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for client, why in (("claude", "is not installed"), ("zed", "not started from a terminal")):
        with pytest.raises(CommandError, match=why):
            connect(client, "--run")
    assert f"export OPENAI_API_KEY={ANY_KEY}\n" in output("connect", "qwen", "--url", URL)
    offered.answer = (401, b'{"error": {"message": "This needs an API key."}}')
    with pytest.raises(CommandError, match=r"API key. --key names one, .* keys create") as caught:
        call_command("connect", "claude", "--url", URL)
    assert caught.value.returncode == ExitCode.DENIED


def test_a_chat_is_written_as_it_comes(offered, monkeypatch) -> None:
    def event(**values: Any) -> bytes:
        return b"data: " + json.dumps(values).encode() + b"\n"

    offered[:] = [READER, {"id": "cold", "capabilities": None}, {"id": "warm", "loaded": True}]
    deltas = [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}]
    chat = [event(choices=[{"delta": delta}]) for delta in deltas]
    chat += [b"\n", event(choices=[], usage={"completion_tokens": 8}), b"data: [DONE]\n"]
    offered.chat = b"".join(chat)
    client = ChatClient(URL, "hx-1")
    assert client.model_to_ask() == "warm"
    written: list[str] = []
    seconds = iter([0.0, 1.0, 3.0])
    answer = client.ask("warm", [], written.append, clock=lambda: next(seconds))
    assert (written, answer.text, answer.tokens_per_s) == (["Hel", "lo"], "Hello", 4.0)
    assert offered.asked.headers["Authorization"] == "Bearer hx-1"
    options = ("--system", "Be brief.", "--max-tokens", "9", "--temperature", "0")
    for words in ((), options):
        monkeypatch.setattr("sys.stdin", StringIO("Hi"))
        out, err = printed("chat", "--url", URL, *words)
        assert (out, "8 tokens" in err) == ("Hello\n", True)
        body = json.loads(offered.asked.data)
        plain = {"model", "messages", "stream", "stream_options"}
        assert body.keys() == plain | ({"max_tokens", "temperature"} if words else set())
    assert (body["messages"][0]["content"], body["max_tokens"]) == ("Be brief.", 9)
    assert body["temperature"] == 0
    # Where no model is to be asked, a line and an exit code report it.
    for status, body, words, code in (
        (200, json.dumps({"data": [READER]}).encode(), "embeddings", 1),
        (200, b"<!doctype html>", "no list of models", 1),
        (404, b'{"error": {"message": "No."}}', "No", ExitCode.NOT_FOUND),
        (401, b"", "401", ExitCode.DENIED),
        (503, b"", "503", ExitCode.UNAVAILABLE),
        (0, b"", "serve running", ExitCode.UNAVAILABLE),
    ):
        offered.answer = (status, body)
        with pytest.raises(CommandError, match=words) as refused:
            ChatClient(URL, None).model_to_ask()
        assert refused.value.returncode == code


def test_questions_and_answers_are_written_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def ask(_client: ChatClient, _model: str, messages: Any, write: Any, **_: Any) -> Answer:
        asked.append([message["content"] for message in messages])
        text = asked[-1][-1]
        if text == "at length":
            raise KeyboardInterrupt
        if text == "too long":
            raise CommandError("The prompt is too long.")
        write(text)
        return Answer(text, 1, 1.0)

    def piped(text: str, is_terminal: bool = False) -> str:
        out = StringIO()
        monkeypatch.setattr("sys.stdin", StringIO(text, newline=""))
        monkeypatch.setattr(out, "isatty", lambda: is_terminal)
        call_command("chat", "some-model", "--url", URL, stdout=out, stderr=StringIO())
        return out.getvalue()

    monkeypatch.setattr(ChatClient, "ask", ask)
    for text, question in (("Where?\n", "Where?"), ("a\n\n", "a\n"), (" Where? ", " Where? ")):
        piped(text)
        assert asked[-1] == [question]
    with pytest.raises(CommandError, match="Nothing was asked"):
        piped("\n")
    moving = "\x1b[2Ja\tb\nc\r\x9b1m \u200d"
    assert piped(moving) == f"{moving}\n"
    assert piped(moving, is_terminal=True) == "\\x1b[2Ja\tb\nc\\r\\x9b1m \u200d\n"
    questions = iter(["Hi", "at length", "too long", "Bye", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(questions))
    _, err = printed("chat", "tiny", "--url", URL)
    assert asked[-1] == ["Hi", "Hi", "Bye"], "what stops an answer does not end the conversation"
    assert "[stopped]" in err and "[The prompt is too long.]" in err


def test_an_answer_that_breaks_off_is_one_line(monkeypatch) -> None:
    def lines(error: Exception) -> Iterator[bytes]:
        yield b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n'
        raise error

    for error in (IncompleteRead(b""), ConnectionResetError("reset")):
        broken = nullcontext(lines(error))
        monkeypatch.setattr(proxies, "open_url", lambda *_, _broken=broken, **__: _broken)
        written: list[str] = []
        with pytest.raises(CommandError, match="broke off"):
            ChatClient(URL, None).ask("m", [{"role": "user", "content": "Hi"}], written.append)
        assert written == ["Hel"]
