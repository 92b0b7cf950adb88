"""What commands refuse, in one line and an exit code: wrong words, and servers that are away or no
helexa."""

from __future__ import annotations

import urllib.error
from http.client import IncompleteRead
from io import BytesIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from fleet.api.catalogue import Catalogue
from fleet.management.backend import refusal_of, refusal_text
from inference import proxies
from tests.cases import each_case
from tests.fleet.commands.conftest import RunCommand

pytestmark = pytest.mark.django_db(transaction=True)
URL = "http://fleet.example:31313"


@each_case(
    ("words", "code"),
    [
        (("models", "show", "nothing"), 3),
        (("neurons", "remove", "beast"), 4),
        (("aliases", "change", "nothing"), 2),
        (("accounts", "list"), 0),
        (("models", "change", "nothing", "--set", "pinned=perhaps"), 1),
    ],
)
def test_exit_codes(run_command: RunCommand, beat, words: tuple[str, ...], code: int) -> None:
    beat()
    try:
        run_command(*words)
    except CommandError as error:
        assert error.returncode == code
    else:
        assert code == 0


@each_case(
    ("words", "reason"),
    [
        (("models", "add", "tiny", "llama3"), "source: 'llama3' does not start with"),
        (("models", "add", "tiny", "pypi:x", "--set", "colour=red"), "is not SETTING=VALUE"),
        (("models", "add", "tiny", "pypi:x", "--set", "max_replicas=many"), "whole number"),
        (("models", "load", "nobody"), "There is no model named 'nobody'"),
        (("neurons", "drain", "nobody"), "There is no neuron named 'nobody'"),
        (("models", "import", "/nowhere.toml"), "cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line(
    run_command: RunCommand, publish, words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(CommandError, match=reason):
        run_command(*words)


def test_a_server_that_is_not_there_and_a_key_without_one() -> None:
    with pytest.raises(CommandError, match="does not answer"):
        call_command("models", "list", "--url", "http://127.0.0.1:1")
    with pytest.raises(CommandError, match="is not like http"):
        call_command("models", "list", "--url", "gpu-box")
    with pytest.raises(CommandError, match="the caller's key for --url"):
        call_command("models", "list", "--key", "hx-1")
    with pytest.raises(CommandError, match="rows of one key: --on-key"):
        call_command("requests", "list", "--key", "hx-1")


@each_case("answer", [b"<!doctype html>", b'{"data": [7]}', b"[]", b"null"])
@each_case(
    "words",
    [
        ("status",),
        ("models", "list"),
        ("neurons", "list"),
        ("logs", "beast", "tiny"),
        ("deploy_gate", "--remember", "/dev/null"),
    ],
)
def test_a_server_that_answers_otherwise_is_one_line(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], answer: bytes
) -> None:
    """Another version of ours, or no helexa at all."""
    monkeypatch.setattr(proxies, "open_url", lambda *_args, **_options: BytesIO(answer))
    with pytest.raises(CommandError, match="does not answer as helexa"):
        call_command(*words, "--url", URL)


@each_case(
    ("content", "words"),
    [
        (b'{"status": 403, "detail": "This needs a scope.", "param": null}', "This needs a scope."),
        (b'{"detail": "is none", "param": "status"}', "status: is none"),
        (b'{"error": {"message": "The API key is not valid."}}', "The API key is not valid."),
        (b'{"error": "no such model"}', "no such model"),
        (b"<!DOCTYPE html>", "the server answers 404"),
        (b"[]", "the server answers 404"),
    ],
)
def test_a_refusal_is_reported_in_its_own_words(content: bytes, words: str) -> None:
    assert refusal_text(404, content) == words


def test_a_refusal_that_breaks_off_is_one_as_well() -> None:
    class Broken(BytesIO):
        def read(self, *_: Any) -> bytes:
            raise IncompleteRead(b"{")

    refused = urllib.error.HTTPError(URL, 503, "", {}, Broken())  # type: ignore[arg-type]
    assert refusal_of(refused) == "the server answers 503"


@each_case("command", ["chat", "status", "deploy_gate"])
@each_case(
    "url", ["http://127.0.0.1:port", "http://:1", "gpu-box:31313", "http://[::1", "http://a:70000"]
)
def test_an_address_that_is_none_is_one_line(command: str, url: str) -> None:
    with pytest.raises(CommandError, match="is not like http"):
        call_command(command, "--url", url)


@each_case("url", ["http://127.0.0.1:1/a b", "http://..:1"])
def test_an_address_that_cannot_be_asked_is_one_line(url: str) -> None:
    for words in (["chat"], ["status"], ["deploy_gate", "--remember", "/dev/null"]):
        with pytest.raises(CommandError, match="does not answer"):
            call_command(*words, "--url", url)


def test_a_database_that_is_not_there_yet_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_args: Any, **_options: Any) -> None:
        raise OperationalError("unable to open database file")

    monkeypatch.setattr(Catalogue, "list", away)
    with pytest.raises(CommandError, match=r"does not answer.*HELEXA_DATA_DIR"):
        call_command("models", "list")
