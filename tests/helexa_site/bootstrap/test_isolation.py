"""Tests never reach a live server, whatever the environment has and whatever runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.conf import settings

from helexa_site.bootstrap.isolation import ISOLATED_BY, isolate
from inference.settings.table import NAMES, OF_TESTS
from tests.cases import each_case

MADE = {"HELEXA_DATA_DIR", "REDIS_URL", ISOLATED_BY}


@each_case("mark", [None, "1", "{live}"])
def test_a_run_has_none_of_the_settings_of_a_live_server(tmp_path: Path, mark: str | None) -> None:
    """Not even where the mark of a run stands in the environment."""
    hostile = dict.fromkeys(NAMES, "odd") | {
        "HELEXA_DATA_DIR": str(tmp_path),
        "REDIS_URL": "redis://live",
        "DATABASE_URL": "sqlite:////live.sqlite3",
        "HELEXA_COLOUR": "odd",
        next(iter(OF_TESTS)): "kept",
        "PATH": "/bin",
    }
    if mark is not None:
        hostile[ISOLATED_BY] = mark.format(live=tmp_path)
    isolate(hostile)
    given = {name for name in hostile if name.startswith("HELEXA") or "_URL" in name}
    assert given == MADE | {next(iter(OF_TESTS))}
    run_dir = Path(hostile[ISOLATED_BY])
    assert run_dir.is_dir() and run_dir != tmp_path
    assert hostile["HELEXA_DATA_DIR"] == f"{run_dir}/var"
    assert hostile["REDIS_URL"] == f"unix://{run_dir}/no-redis.sock"
    before = dict(hostile)
    isolate(hostile)
    assert hostile == before, "processes of the run share its directory"


def test_this_run_is_isolated(pytestconfig: pytest.Config) -> None:
    """By a plugin that pytest loads before Django's settings, however it is started."""
    assert pytestconfig.pluginmanager.has_plugin("tests.isolation")
    run_dir = Path(os.environ[ISOLATED_BY])
    assert settings.CONFIG.data_dir.is_relative_to(run_dir)
    assert str(run_dir) in str(settings.DATABASES["default"]["NAME"]) + settings.CONFIG.database_url
