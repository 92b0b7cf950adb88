"""``manage.py chat``: a conversation in the terminal, with whatever server answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from email.message import Message
from http.client import IncompleteRead
from io import BytesIO, StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from fleet.management.chat_client import Answer, ChatClient
from helexa_site.exit_codes import ExitCode
from inference import proxies
from tests.cases import each_case
from tests.metering.commands.command_output import output, printed

URL = "http://fleet.example:31313"


def test_a_chat_is_written_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(**values: Any) -> bytes:
        return b"data: " + json.dumps(values).encode() + b"\n"

    reader = {"id": "bge", "loaded": True, "capabilities": ["embeddings"]}
    cold, warm = {"id": "cold", "capabilities": None}, {"id": "warm", "loaded": True}
    models = json.dumps({"data": [reader, cold, warm]}).encode()
    chat = [
        event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
        b"\n",
        event(choices=[{"delta": {"content": "Hel"}}]),
        event(choices=[{"delta": {"content": "lo"}}]),
        event(choices=[], usage={"completion_tokens": 8}),
        b"data: [DONE]\n",
    ]
    asked: list[urllib.request.Request] = []

    def open_url(request: urllib.request.Request, timeout: float) -> BytesIO:
        asked.append(request)
        return BytesIO(models if request.full_url.endswith("/models") else b"".join(chat))

    monkeypatch.setattr(proxies, "open_url", open_url)
    client = ChatClient(URL, "hx-1")
    assert client.model_to_ask() == "warm"
    written: list[str] = []
    seconds = iter([0.0, 1.0, 3.0])
    answer = client.ask("warm", [], written.append, clock=lambda: next(seconds))
    assert (written, answer.text, answer.tokens_per_s) == (["Hel", "lo"], "Hello", 4.0)
    assert asked[-1].headers["Authorization"] == "Bearer hx-1"
    monkeypatch.setattr("sys.stdin", StringIO("Hi"))
    out, err = printed("chat", "--url", URL)
    assert (out, "8 tokens" in err) == ("Hello\n", True)
    assert json.loads(asked[-1].data).keys() == {"model", "messages", "stream", "stream_options"}
    monkeypatch.setattr("sys.stdin", StringIO("Hi"))
    words = ("--system", "Be brief.", "--max-tokens", "9", "--temperature", "0")
    output("chat", "--url", URL, *words)
    body = json.loads(asked[-1].data)
    assert (body["messages"][0]["content"], body["max_tokens"]) == ("Be brief.", 9)
    assert body["temperature"] == 0


@each_case(
    ("status", "answer", "words", "code"),
    [
        (200, b'{"data": [{"id": "bge", "capabilities": ["embeddings"]}]}', "embeddings", 1),
        (200, b"<!doctype html>", "no list of models", 1),
        (404, b'{"error": {"message": "No."}}', "No", ExitCode.NOT_FOUND),
        (401, b"", "401", ExitCode.DENIED),
        (503, b"", "503", ExitCode.UNAVAILABLE),
        (0, b"", "serve running", ExitCode.UNAVAILABLE),
    ],
)
def test_where_no_model_is_to_be_asked_a_line_and_an_exit_code_report_it(
    monkeypatch: pytest.MonkeyPatch, status: int, answer: bytes, words: str, code: int
) -> None:
    def open_url(*_args: Any, **_options: Any) -> BytesIO:
        if status == 0:
            raise urllib.error.URLError("refused")
        if status != 200:
            raise urllib.error.HTTPError(URL, status, "No", Message(), BytesIO(answer))
        return BytesIO(answer)

    monkeypatch.setattr(proxies, "open_url", open_url)
    with pytest.raises(CommandError, match=words) as refused:
        ChatClient(URL, None).model_to_ask()
    assert refused.value.returncode == code


def test_questions_and_answers_are_written_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model answers otherwise with the newline of echo."""
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


@each_case("error", [IncompleteRead(b""), ConnectionResetError("reset")])
def test_an_answer_that_breaks_off_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def lines() -> Iterator[bytes]:
        yield b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n'
        raise error

    monkeypatch.setattr(proxies, "open_url", lambda *_args, **_options: nullcontext(lines()))
    written: list[str] = []
    with pytest.raises(CommandError, match="broke off"):
        ChatClient(URL, None).ask("m", [{"role": "user", "content": "Hi"}], written.append)
    assert written == ["Hel"]
