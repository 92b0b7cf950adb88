"""``manage.py chat``: a conversation in the terminal, with whatever server answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The messages of each question; answers are its last one, some of which stop it."""
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

    monkeypatch.setattr(ChatClient, "ask", ask)
    return asked


def test_the_newline_of_echo_is_no_part_of_the_question(
    monkeypatch: pytest.MonkeyPatch, asked: list[list[str]]
) -> None:
    """A small model answers otherwise with it."""
    for piped, question in (("Where?\n", "Where?"), ("a\n\n", "a\n"), (" Where? ", " Where? ")):
        monkeypatch.setattr("sys.stdin", StringIO(piped))
        output("chat", "some-model", "--url", URL)
        assert asked[-1] == [question]
    monkeypatch.setattr("sys.stdin", StringIO("\n"))
    with pytest.raises(CommandError, match="Nothing was asked"):
        call_command("chat", "some-model", "--url", URL)


@each_case("is_terminal", [True, False])
def test_an_answer_moves_no_cursor(
    monkeypatch: pytest.MonkeyPatch, asked: list[list[str]], is_terminal: bool
) -> None:
    text = "\x1b[2Ja\tb\nc\r\x9b1m \u200d"
    monkeypatch.setattr("sys.stdin", StringIO(text, newline=""))
    out = StringIO()
    monkeypatch.setattr(out, "isatty", lambda: is_terminal)
    call_command("chat", "some-model", "--url", URL, stdout=out, stderr=StringIO())
    shown = "\\x1b[2Ja\tb\nc\\r\\x9b1m \u200d" if is_terminal else text
    assert out.getvalue() == shown + "\n"


def test_a_conversation_survives_what_stops_an_answer(
    monkeypatch: pytest.MonkeyPatch, asked: list[list[str]]
) -> None:
    questions = iter(["Hi", "at length", "too long", "Bye", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(questions))
    _, err = printed("chat", "tiny", "--url", URL)
    assert asked[-1] == ["Hi", "Hi", "Bye"]
    assert "[stopped]" in err and "[The prompt is too long.]" in err


class Broken(BytesIO):
    """Ends with an error."""

    def __init__(self, content: bytes, error: Exception) -> None:
        super().__init__(content)
        self.error = error

    def __next__(self) -> bytes:
        if line := self.readline():
            return line
        raise self.error


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


@each_case("error", [IncompleteRead(b""), ConnectionResetError("reset")])
def test_an_answer_that_breaks_off_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    first = b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n'
    monkeypatch.setattr(proxies, "open_url", lambda *_args, **_options: Broken(first, error))
    written: list[str] = []
    with pytest.raises(CommandError, match="broke off"):
        ChatClient(URL, None).ask("m", [{"role": "user", "content": "Hi"}], written.append)
    assert written == ["Hel"]
