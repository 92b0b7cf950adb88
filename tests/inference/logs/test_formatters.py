"""One record is one line, whatever a client put into it."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference.logs.formatters import INDENT, JsonFormatter, TextFormatter, one_line
from inference.logs.redaction import Redactor
from tests.cases import each_case

FORGED = "tiny\n2026-11-22 10:00:00,000 INFO gateway helexa.requests: req-1 model=tiny finished"
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ gateway [\w.]+: ")
TEXT = TextFormatter("gateway", Redactor())
JSON = JsonFormatter("gateway", Redactor(frozenset({"a-known-secret"})))


def record(message: str, *arguments: Any, **attributes: Any) -> logging.LogRecord:
    made = logging.LogRecord("helexa.requests", logging.INFO, "", 0, message, arguments, None)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def failing(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        return record("it failed", exc_info=sys.exc_info())


@each_case(
    ("given", "shown"),
    [
        ("plain", "plain"),
        ("größer 模型 🙂", "größer 模型 🙂"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("a\u2028b\x85c", r"a\u2028b\x85c"),
        ("\u202eright to left", r"\u202eright to left"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_what_is_invisible_is_escaped(given: str, shown: str) -> None:
    assert one_line(given) == shown


@given(st.text())
def test_no_text_breaks_a_line(text: str) -> None:
    for formatter in (TEXT, JSON):
        line = formatter.format(record("%s", text))
        assert len(line.splitlines()) == 1
        line.encode()


def test_a_newline_forges_no_record_and_a_trace_is_indented() -> None:
    line = TEXT.format(record("%s model=%s", "req-0", FORGED))
    assert RECORD.match(line) and r"model=tiny\n2026-11-22" in line
    head, *rest = TEXT.format(failing(FORGED)).split("\n")
    assert RECORD.match(head)
    assert rest[0] == f"{INDENT}Traceback (most recent call last):"
    assert any("req-1 model=tiny finished" in line for line in rest)
    assert all(line.startswith(INDENT) for line in rest)
    assert "%d tokens" in TEXT.format(record("%d tokens", "many")), "arguments that do not fit"


def test_json_is_one_object_a_line() -> None:
    line = JSON.format(
        record("model=%s", FORGED, model="tiny", prompt_tokens=7, level="forged", when=datetime.max)
    )
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["message"] == f"model={FORGED}"
    assert (entry["level"], entry["logger"], entry["role"]) == (
        "INFO",
        "helexa.requests",
        "gateway",
    )
    assert (entry["model"], entry["prompt_tokens"]) == ("tiny", 7)
    assert entry["when"] == str(datetime.max)
    assert datetime.fromisoformat(entry["ts"]).tzinfo is not None
    assert "exc" not in entry
    assert {"args", "msg", "taskName"}.isdisjoint(entry)


def test_json_holds_the_trace_and_no_secret_anywhere() -> None:
    failed = failing("redis://:sesame@redis/0 is away")
    failed.headers = {"auth": ["Bearer sesame"], "name": "a-known-secret"}
    entry = json.loads(JSON.format(failed))
    assert entry["exc"].startswith("Traceback")
    assert "ValueError: redis://:***@redis/0 is away" in entry["exc"]
    assert entry["headers"] == {"auth": ["Bearer ***"], "name": "***"}
