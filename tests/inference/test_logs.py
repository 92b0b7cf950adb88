"""What processes log: a record is a line whatever a client put into it, holds nothing secret, and
comes no oftener than anybody reads it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helexa_site.program import REPOSITORY_DIR
from inference import logs
from inference.redaction import MAX_BODY_CHARACTERS, Redactor, digest_of, masked_body, secrets_of
from inference.settings.setting import SettingError
from tests.cases import each_case

REDACT = Redactor(frozenset({"operators-own", "the"}))
TEXT = logs.TextFormatter("gateway", Redactor())
JSON = logs.JsonFormatter("gateway", Redactor(frozenset({"a-known-secret"})))
FORGED = "tiny\n2026-11-22 10:00:00,000 INFO gateway helexa.requests: req-1 model=tiny finished"
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ gateway [\w.]+: ")


@each_case(
    ("given", "shown"),
    [
        ("lost redis://:p@ss.word/0?", "lost redis://:***@ss.word/0?"),
        ("unix://:sesame@/run/redis.sock?db=0", "unix://:***@/run/redis.sock?db=0"),
        ("postgres://u:sesame@db/helexa and more", "postgres://u:***@db/helexa and more"),
        ("redis+socket://:x@/run, redis://:y@h", "redis+socket://:***@/run, redis://:***@h"),
        ("no http://localhost:8080/a@b secret", "no http://localhost:8080/a@b secret"),
        ("key hx-abcd1234efgh5678ijkl here", "key hx-abcd1234*** here"),
        ("its prefix hx-abcd12345678 may be read", "its prefix hx-abcd12345678 may be read"),
        ("authorization: Bearer any.thing-at_all", "authorization: Bearer ***"),
        ("{'x-api-key': 'sk-proj-0123456789abcdef'}", "{'x-api-key': 'sk-***'}"),
        ("token hf_0123456789abcdefghij", "token hf_***"),
        ("a task-runner and phx-abcdefghijklmnopqrs", "a task-runner and phx-abcdefghijklmnopqrs"),
        ("the operators-own key", "the *** key"),
    ],
)
def test_secrets_are_hidden_and_nothing_else_is(given: str, shown: str) -> None:
    assert REDACT(given) == shown
    environment = {"HELEXA_API_KEY": "operators-own", "HF_TOKEN": "whatever"}
    environment |= {"REDIS_URL": "redis://:sesame@redis/0", "HELEXA_DATA_DIR": "/var/helexa"}
    assert secrets_of(environment) == {"operators-own", "whatever"}


@each_case(
    ("given", "shown"),
    [
        ("look: data:image/png;base64,iVBORw0KGgo= ok", "look: data:image/png;base64,*** ok"),
        ('{"url": "data:text/plain,hello"}', '{"url": "data:text/plain,***"}'),
        ("Authorization: Bearer abc.def-ghi", "Authorization: ***"),
        ("curl -H 'x-api-key: 0123456789'", "curl -H 'x-api-key: ***'"),
        ('api_key = "s3same"', 'api_key = "***"'),
        (r"{\"password\": \"s3same\", \"a\": 1}", r"{\"password\": \"***\", \"a\": 1}"),
        ("SECRET_KEY=s3same next", "SECRET_KEY=*** next"),
        ("AKIAIOSFODNN7EXAMPLE and on", "AKIA*** and on"),
        ("ghp_0123456789abcdefghij0123456789abcdef", "ghp_***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJ***"),
        ("redis://:sesame@redis/0", "redis://:***@redis/0"),
        ("the operators-own key", "the *** key"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY----- end",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY----- end",
        ),
        ("my password is long; the tokens=12", "my password is long; the tokens=12"),
        ("a database, data: none, dataset:1,2", "a database, data: none, dataset:1,2"),
    ],
)
def test_what_is_masked_of_clients_texts(given: str, shown: str) -> None:
    assert masked_body(given, REDACT) == shown


@given(before=st.integers(0, 80), after=st.integers(0, 80), limit=st.integers(2, 60))
def test_no_cut_uncovers_a_part_of_a_key(before: int, after: int, limit: int) -> None:
    key = "sk-" + "K" * 40
    assert "K" not in masked_body(f"{'a' * before} {key} {'b' * after}", REDACT, limit)
    shown = masked_body("a" * 60_000 + "b" * 60_000, REDACT)
    assert len(shown) < MAX_BODY_CHARACTERS + 100
    assert shown.startswith("aaa") and shown.endswith("bbb")
    assert f"[{120_000 - MAX_BODY_CHARACTERS} characters left out]" in shown
    assert digest_of("yes") == digest_of("yes") != digest_of("no")
    assert len(digest_of("\ud800")) == 16


def record(message: str, *arguments: Any, **attributes: Any) -> logging.LogRecord:
    made = logging.LogRecord("helexa.requests", logging.INFO, "", 0, message, arguments, None)
    vars(made).update(attributes)
    return made


def failing(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        return record("it failed", exc_info=sys.exc_info())


@given(st.text())
def test_no_text_breaks_a_line_and_what_is_invisible_is_escaped(text: str) -> None:
    for formatter in (TEXT, JSON):
        line = formatter.format(record("%s", text))
        assert len(line.splitlines()) == 1
        line.encode()
    for given_, shown in (
        ("größer 模型 🙂", "größer 模型 🙂"),
        ("a\r\nb\tc\x1b[2J", r"a\r\nb\tc\x1b[2J"),
        ("a\u2028b\x85c\u202e", r"a\u2028b\x85c\u202e"),
        ("half \ud800", r"half \ud800"),
    ):
        assert logs.one_line(given_) == shown


def test_a_record_is_one_line_or_object_with_its_trace_and_no_secret() -> None:
    line = TEXT.format(record("%s model=%s", "req-0", FORGED))
    assert RECORD.match(line) and r"model=tiny\n2026-11-22" in line
    head, *rest = TEXT.format(failing(FORGED)).split("\n")
    assert RECORD.match(head)
    assert rest[0] == f"{logs.INDENT}Traceback (most recent call last):"
    assert any("req-1 model=tiny finished" in line for line in rest)
    assert all(line.startswith(logs.INDENT) for line in rest)
    assert "%d tokens" in TEXT.format(record("%d tokens", "many")), "arguments that do not fit"
    more = {"model": "tiny", "prompt_tokens": 7, "when": datetime.max}
    line = JSON.format(record("model=%s", FORGED, level="forged", **more))
    assert "\n" not in line
    entry = json.loads(line)
    assert datetime.fromisoformat(entry.pop("ts")).tzinfo is not None
    assert entry == {
        "message": f"model={FORGED}",
        "level": "INFO",
        "logger": "helexa.requests",
        "role": "gateway",
        "pid": os.getpid(),
        **(more | {"when": str(datetime.max)}),
    }
    failed = failing("redis://:sesame@redis/0 is away")
    failed.headers = {"auth": ["Bearer sesame"], "name": "a-known-secret"}
    entry = json.loads(JSON.format(failed))
    assert entry["exc"].startswith("Traceback")
    assert "ValueError: redis://:***@redis/0 is away" in entry["exc"]
    assert entry["headers"] == {"auth": ["Bearer ***"], "name": "***"}


PROGRAM = """
import logging, sys, threading, warnings
other = logging.getLogger("uvicorn")
other.addHandler(logging.StreamHandler(sys.stdout))
other.propagate = False
off = logging.getLogger("off")
off.propagate = False
from inference.logs import configure_logging
configure_logging("neuron")
other.warning("from %s", "uvicorn\\nforged")
off.info("never shown")
off.warning("of a logger that is cut off")
logging.getLogger("celery.worker").info("too much")
warnings.warn("an old way")
def fail(word):
    raise ValueError(word)
thread = threading.Thread(target=fail, args=("in a thread",), name="worker")
thread.start()
thread.join()
fail("at the end")
"""


def run(program: str, log_format: str, level: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY_DIR,
        env={"HELEXA_LOG_FORMAT": log_format, "HELEXA_LOG_LEVEL": level},
        capture_output=True,
        text=True,
    )


def test_everything_is_a_record_of_one_line() -> None:
    outcome = run(PROGRAM, "json")
    assert (outcome.stdout, outcome.returncode) == ("", 1)
    records = [json.loads(line) for line in outcome.stderr.splitlines()]
    assert {entry["role"] for entry in records} == {"neuron"}
    assert [entry["level"] for entry in records] == [*3 * ["WARNING"], *2 * ["CRITICAL"]]
    library, cut_off, warned, in_thread, uncaught = records
    assert cut_off["message"] == "of a logger that is cut off"
    assert library["message"] == "from uvicorn\nforged"
    assert "an old way" in warned["message"]
    assert "worker" in in_thread["message"]
    assert "in a thread" in in_thread["exc"]
    assert "at the end" in uncaught["exc"]
    lines = run(PROGRAM, "").stderr.splitlines()
    shown = [line for line in lines if not line.startswith("    ")]
    assert len(shown) == 5, "text is the default"
    assert " WARNING neuron uvicorn: from uvicorn\\nforged" in shown[0]
    assert " CRITICAL neuron inference.logs: " in shown[4]


NAMES = ("inference.neuron.app", "inference.gateway", "httpx", "celery")
LEVELS = f"""
import logging
from inference.logs import configure_logging
configure_logging("neuron")
for name in {NAMES}:
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger(name), level)("")
"""


@each_case(
    ("word", "num_records"),
    [
        ("", (3, 3, 2, 2)),
        ("debug", (4, 4, 2, 2)),
        ("info,inference.neuron=debug", (4, 3, 2, 2)),
        (" inference=error , httpx=info ", (1, 1, 3, 2)),
    ],
)
def test_levels_are_the_operators(word: str, num_records: tuple[int, ...]) -> None:
    outcome = run(LEVELS, "json", word)
    loggers = Counter(json.loads(line)["logger"] for line in outcome.stderr.splitlines())
    assert tuple(loggers[name] for name in NAMES) == num_records
    for name, wrong in (("HELEXA_LOG_FORMAT", "xml"), ("HELEXA_LOG_LEVEL", "loud")):
        with pytest.raises(SettingError, match=f"{name}="):
            logs.configure_logging("gateway", environment={name: wrong})


def test_a_few_lines_of_each_key_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    logger = logging.getLogger("tests.throttled")
    log = logs.ThrottledLog(
        logger, logging.WARNING, interval_s=60, max_messages=2, clock=lambda: now_s
    )
    for number in range(10):
        log.log("a", f"a{number % 3}")
    log.log("b", "b")
    now_s = 60
    log.log("a", "a0")
    log.log("b", "b")
    log = logs.ThrottledLog(logger, logging.WARNING)
    for _ in range(2):
        log.log("a", "broken")
        log.forget("a")  # it is new again
    shown = ["a0", "a1", "b", "a0 (and 8 more like it)", "b", "broken", "broken"]
    assert caplog.messages == shown
    for number in range(logs.MAX_THROTTLED_KEYS + 1):
        log.log(str(number), "x")
    log.log("1", "x")
    log.log("0", "x")
    assert len(caplog.messages) == len(shown) + logs.MAX_THROTTLED_KEYS + 2, "keys are bounded"
