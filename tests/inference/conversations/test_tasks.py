"""The periodic clean-up: the operator's setting, and a database that is away."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError

from helexa_site.celery import TASK_FORGET_RESPONSES, app
from helexa_site.config import read_config
from inference.conversations import services, tasks
from inference.settings.setting import SettingError
from metering.actor import CONTROL, Actor


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[timedelta]:
    ages: list[timedelta] = []

    def forget(*, actor: Actor, older_than: timedelta) -> int:
        assert actor is CONTROL
        ages.append(older_than)
        return 1

    monkeypatch.setattr(services, "responses_forget", forget)
    return ages


def keep_for(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    monkeypatch.setattr(settings, "CONFIG", replace(settings.CONFIG, response_retention_days=days))


def test_the_setting_is_days(monkeypatch: pytest.MonkeyPatch, forgotten: list[timedelta]) -> None:
    keep_for(monkeypatch, 7)
    tasks.forget_responses()
    assert forgotten == [timedelta(days=7)]


def test_zero_keeps_them(monkeypatch: pytest.MonkeyPatch, forgotten: list[timedelta]) -> None:
    keep_for(monkeypatch, 0)
    tasks.forget_responses()
    assert forgotten == []


def test_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_named: Any) -> int:
        raise OperationalError("gone")

    monkeypatch.setattr(services, "responses_forget", away)
    tasks.forget_responses()


def test_the_worker_knows_it_and_beat_asks_for_it() -> None:
    app.loader.import_default_modules()
    assert TASK_FORGET_RESPONSES in app.tasks
    assert TASK_FORGET_RESPONSES in {entry["task"] for entry in app.conf.beat_schedule.values()}


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_config().response_retention_days == 30
    monkeypatch.setenv("HELEXA_RESPONSE_RETENTION_DAYS", "3")
    assert read_config().response_retention_days == 3
    monkeypatch.setenv("HELEXA_RESPONSE_RETENTION_DAYS", "-1")
    with pytest.raises(SettingError):
        read_config()
