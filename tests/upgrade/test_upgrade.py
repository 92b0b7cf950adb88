"""An upgrade from the last release: the data that it kept, restored and read by today's code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helexa_site.backup import unpack
from helexa_site.program import REPOSITORY_DIR
from tests.helexa_site.test_backup import manage
from tests.own_python import run_python
from tests.servers.private_postgres import new_database, running_postgres
from tests.upgrade.fill import NO_REDIS, make_archive

RELEASES_DIR = REPOSITORY_DIR / "packaging" / "releases"
TODAY = "today's code"
RELEASES = sorted(path.name.split(".sqlite")[0] for path in RELEASES_DIR.glob("*.sqlite.tar.gz"))
"""At most one: the last. An archive of today's code is what the next release will keep."""
MAY_CHANGE = frozenset({"spec_digest", "is_outdated"})
"""Fields that depend on the code as well as on the data."""
UNFILLED = frozenset(
    {
        *("auth_group", "auth_group_permissions", "auth_user_groups"),
        *("auth_user_user_permissions", "django_admin_log", "django_session"),
        *("fleet_controlterm", "metering_gatewaylease", "metering_setasidereport"),
    }
)
"""Tables of Django that helexa does not use, of what runs at the moment, and of what only releases
up to 0.2.0 wrote."""


def lost(then: Any, now: Any, at: str = "") -> Iterator[str]:
    """Later versions may show more fields, and no fewer rows or other values."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in sorted(then.keys() - MAY_CHANGE):
            if name in now:
                yield from lost(then[name], now[name], f"{at} {name}")
            else:
                yield f"{at} {name} is gone"
    elif isinstance(then, list) and isinstance(now, list):
        if len(then) != len(now):
            yield f"{at}: {len(then)} became {len(now)} rows"
        for place, (one, other) in enumerate(zip(then, now, strict=False)):
            yield from lost(one, other, f"{at} {place}")
    elif then != now:
        yield f"{at}: {then!r} became {now!r}"


@pytest.fixture(params=[*RELEASES, pytest.param(TODAY, marks=[pytest.mark.slow] * bool(RELEASES))])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check_upgrade(archive: Path, data_dir: Path, database_url: str) -> None:
    manage(data_dir, "restore", str(archive), DATABASE_URL=database_url)
    script = ("-m", "tests.upgrade.fill", "look")
    found = json.loads(run_python(database_url, data_dir, *script, REDIS_URL=NO_REDIS))
    assert list(lost(found["then"], found["now"])) == []
    assert found["now"]["login"] and found["now"]["upstream's key"]
    assert found["spent_more"] == [["micro_usd", 30], ["micro_usd", 30], ["tokens", 70]]


def test_from_sqlite(release: str, tmp_path: Path) -> None:
    archive = RELEASES_DIR / f"{release}.sqlite.tar.gz"
    if release == TODAY:
        archive = tmp_path / "today.tar.gz"
        make_archive(archive, tmp_path, f"sqlite:///{tmp_path / 'first.sqlite3'}")
        rows = unpack(archive, tmp_path / "unpacked").rows
        assert {table for table, number in rows.items() if not number} <= UNFILLED
    check_upgrade(archive, tmp_path / "data", f"sqlite:///{tmp_path / 'second.sqlite3'}")


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.limit_s(600)
def test_from_postgresql(release: str, tmp_path: Path) -> None:
    archive = RELEASES_DIR / f"{release}.postgres.tar.gz"
    with running_postgres() as server_url:
        if release == TODAY:
            archive = tmp_path / "today.tar.gz"
            make_archive(archive, tmp_path, new_database(server_url))
        check_upgrade(archive, tmp_path / "data", new_database(server_url))
