"""What commands refuse, in one line and an exit code: wrong words, and servers that are away or no
helexa."""

from __future__ import annotations

import json
import urllib.error
from io import BytesIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from fleet.api.catalogue import Catalogue
from fleet.management.backend import refusal_of
from inference import proxies
from tests.cases import each_case
from tests.fleet.commands.conftest import RunCommand

pytestmark = pytest.mark.django_db(transaction=True)
URL = "http://fleet.example:31313"


@each_case(
    ("words", "code", "reason"),
    [
        ("models show nothing", 3, ""),
        ("neurons remove beast", 4, ""),
        ("aliases change nothing", 2, ""),
        ("models change nothing --set pinned=perhaps", 1, ""),
        ("models add tiny llama3", 1, "source: 'llama3' does not start with"),
        ("models add tiny pypi:x --set colour=red", None, "is not SETTING=VALUE"),
        ("models add tiny pypi:x --set max_replicas=many", None, "whole number"),
        ("models load nobody", 3, "There is no model named 'nobody'"),
        ("neurons drain nobody", 3, "There is no neuron named 'nobody'"),
        ("models import /nowhere.toml", None, "cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    run_command: RunCommand, beat, words: str, code: int | None, reason: str
) -> None:
    beat()
    with pytest.raises(CommandError) as refused:
        run_command(*words.split())
    assert reason in str(refused.value)
    assert code is None or refused.value.returncode == code


@each_case(
    ("words", "reason"),
    [
        ("models list --url http://127.0.0.1:1", "does not answer"),
        ("models list --url gpu-box", "is not like http"),
        ("models list --key hx-1", "the caller's key for --url"),
        ("requests list --key hx-1", "rows of one key: --on-key"),
        *(
            (f"{command} --url {url}", "is not like http")
            for command in ("chat", "status", "deploy_gate")
            for url in ("http://a:port", "http://:1", "box:31313", "http://[::1", "http://a:70000")
        ),
        *(
            (f"{command} --url http://..:1", "does not answer")
            for command in ("chat", "status", "deploy_gate --remember /dev/null")
        ),
    ],
)
def test_a_server_that_is_not_there_and_a_key_without_one(words: str, reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        call_command(*words.split())


def test_a_server_that_answers_otherwise_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of ours, or no helexa at all."""
    commands = ("status", "models list", "neurons list", "logs beast tiny")
    for words in (*commands, "deploy_gate --remember /dev/null"):
        for answer in (b"<!doctype html>", b'{"data": [7]}', b"[]", b"null"):
            monkeypatch.setattr(proxies, "open_url", lambda *_, _body=answer, **__: BytesIO(_body))
            with pytest.raises(CommandError, match="does not answer as helexa"):
                call_command(*words.split(), "--url", URL)


def test_a_refusal_is_reported_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, words in (
        ({"status": 403, "detail": "This needs a scope.", "param": None}, "This needs a scope."),
        ({"detail": "is none", "param": "status"}, "status: is none"),
        ({"error": {"message": "The API key is not valid."}}, "The API key is not valid."),
        ({"error": "no such model"}, "no such model"),
        ("<!DOCTYPE html>", "the server answers 404"),
        ([], "the server answers 404"),
    ):
        body = BytesIO((content if isinstance(content, str) else json.dumps(content)).encode())
        refused = urllib.error.HTTPError(URL, 404, "", {}, body)  # type: ignore[arg-type]
        assert refusal_of(refused) == words

    def away(*_args: Any, **_options: Any) -> None:
        raise OperationalError("unable to open database file")

    monkeypatch.setattr(Catalogue, "list", away)
    with pytest.raises(CommandError, match=r"does not answer.*HELEXA_DATA_DIR"):
        call_command("models", "list")
