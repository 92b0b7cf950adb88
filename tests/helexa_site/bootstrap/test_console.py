"""What serve prints: lines, or JSON where the operator wants logs as that."""

from __future__ import annotations

import json

import pytest

from helexa_site.bootstrap.children import WARNINGS
from helexa_site.bootstrap.console import print_line, print_step, relay
from tests.cases import each_case


def test_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("HELEXA_LOG_FORMAT", raising=False)
    print_step("redis", "started")
    print_line("ready: http://127.0.0.1:1")
    relay("gateway", "a\x1b[2Jb\nc")
    assert capsys.readouterr().out.splitlines() == [
        "redis       started",
        "ready: http://127.0.0.1:1",
        r"gateway     a\x1b[2Jb\nc",
    ]


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HELEXA_LOG_FORMAT", "json")
    print_line("ready: http://127.0.0.1:1")
    record = '{"ts": "2026-11-22T10:00:00.000Z", "level": "ERROR", "message": "m"}'
    relay("gateway", record)
    relay("gateway", "printed by a library")
    first, second, third = capsys.readouterr().out.splitlines()
    assert json.loads(first)["message"] == "ready: http://127.0.0.1:1"
    assert json.loads(first)["role"] == "serve"
    assert second == record
    assert json.loads(third)["message"].endswith("printed by a library")


@each_case(
    ("line", "is_shown"),
    [
        ("2026-11-22 10:00:00,123 WARNING gateway fleet: m", True),
        ('{"ts": "2026-11-22T10:00:00.000Z", "level": "CRITICAL", "message": ""}', True),
        ("2026-11-22 10:00:00,123 INFO gateway helexa.requests: model=ERROR", False),
        ('{"ts": "2026-11-22T10:00:00.000Z", "level": "INFO", "message": "ERROR"}', False),
        ("    2026-11-22 10:00:00,123 WARNING gateway fleet: in a trace", False),
    ],
)
def test_only_records_of_that_level_are_shown(line: str, is_shown: bool) -> None:
    assert bool(WARNINGS.search(line)) == is_shown
