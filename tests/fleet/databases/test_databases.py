"""The same code on SQLite and on PostgreSQL, each check in a process of its own."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from helexa_site.bootstrap.console import BootstrapError
from helexa_site.bootstrap.readiness import prepare_database
from helexa_site.program import REPOSITORY_DIR
from inference.gateway.database import NUM_THREADS
from tests.cases import each_case
from tests.own_python import run_python
from tests.servers.private_postgres import new_database

FIRST = ("fleet", "0001_squashed_0041_stage_links")
TESTS_DIR = Path(__file__).resolve().parents[2]
RELEASES: dict[str, dict[str, str]] = json.loads(
    (REPOSITORY_DIR / "packaging" / "releases.json").read_text()
)
DATABASE_TESTS = [
    str((TESTS_DIR / name).resolve(strict=True))  # one that moved is noticed by every run
    for name in (
        "fleet/services/test_catalogue.py",
        "fleet/services/test_heartbeats.py",
        "fleet/services/test_load_jobs.py",
        "fleet/services/test_stages_on_hosts.py",
        "hostile/test_heartbeats.py",
        "fleet/test_ticks.py",
        "fleet/upstreams/test_upstreams.py",
        "inference/conversations/test_storage.py",
        "helexa_site/logins/test_throttle.py",
        "metering/playground/test_playground.py",
        "metering/bench/test_command.py",
        "metering/bench/test_pages.py",
        "metering/api/test_api.py",
        "metering/commands/test_commands.py",
        "metering/test_key_directory.py",
        "metering/test_services.py",
    )
]


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.slow),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'helexa.sqlite3'}"
    return new_database(request.getfixturevalue("postgres_url"))


def result_of(script: str, database_url: str, data_dir: Path, *words: str) -> Any:
    return json.loads(run_python(database_url, data_dir, str(TESTS_DIR / script), *words))


@pytest.mark.slow
def test_racing_starts_make_one_job(database_url, migrated_sqlite, tmp_path) -> None:
    if database_url.startswith("sqlite"):
        shutil.copy(migrated_sqlite, tmp_path)
    result = result_of("fleet/databases/races.py", database_url, tmp_path, "loads")
    assert len(set(result["ids"])) == 1
    assert (result["jobs"], result["sent"]) == (1, 1)
    assert len(set(result["placed"])) == 1, "two gateways never load one model twice"


@pytest.mark.slow
def test_starts_at_once_migrate_one_after_the_other(database_url: str, tmp_path: Path) -> None:
    migrate = ("manage.py", "migrate", "--verbosity", "0")
    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(run_python, database_url, tmp_path, *migrate) for _ in range(3)]:
            each.result()


@pytest.mark.slow
@pytest.mark.postgres
def test_a_control_that_freezes_is_followed(postgres_url: str, tmp_path: Path) -> None:
    found = result_of("fleet/databases/races.py", postgres_url, tmp_path, "freeze")
    is_led_by_the_new, num_failures, num_written = found
    assert (is_led_by_the_new, num_failures, num_written) == (True, 1, 0)


@pytest.mark.django_db(transaction=True)
@each_case("app", ["fleet", "batches", "bench", "playground"])
def test_a_version_that_is_older_than_the_database_reports_it(app: str) -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_applied(app, "9999_from_the_future")
    try:
        with pytest.raises(CommandError, match=rf"newer helexa.*{app}.9999_from_the_future"):
            call_command("migrate", verbosity=0)
        with pytest.raises(BootstrapError, match="newer helexa"):
            prepare_database(with_model=False)
        with pytest.raises(CommandError, match="newer helexa"):
            call_command("gateway")
    finally:
        recorder.record_unapplied(app, "9999_from_the_future")


@pytest.mark.django_db(transaction=True)
def test_a_database_of_before_the_first_migrations_is_refused() -> None:
    recorder = MigrationRecorder(connection)
    replaced = MigrationLoader(None).disk_migrations[FIRST].replaces
    for key in (FIRST, replaced[-1]):
        recorder.record_unapplied(*key)
    try:
        with pytest.raises(CommandError, match=rf"before 0\.2\.0.*{replaced[-2][1]}"):
            call_command("migrate", verbosity=0)
        recorder.record_applied(*replaced[-1])
        call_command("migrate", verbosity=0)
        assert FIRST in recorder.applied_migrations()
    finally:
        for key in {FIRST, replaced[-1]} - recorder.applied_migrations().keys():
            recorder.record_applied(*key)


@pytest.mark.slow
def test_a_burst_of_guesses_gains_nothing(database_url: str, tmp_path: Path) -> None:
    result = result_of("helexa_site/logins/login_burst.py", database_url, tmp_path)
    assert result["num_sent"] > 5 >= result["num_looked_at"]
    assert set(result["statuses"]) == {429}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.limit_s(1200)
def test_the_database_tests_pass_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    output = run_python(
        postgres_url, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *DATABASE_TESTS
    )
    assert " passed" in output


@pytest.mark.slow
@pytest.mark.postgres
def test_a_gateway_keeps_its_connections(postgres_url: str, tmp_path: Path) -> None:
    result = result_of("inference/gateway/database_connections.py", postgres_url, tmp_path)
    assert 1 <= len(result["used"]) <= NUM_THREADS
    assert result["num_ended"] >= len(result["used"])
    assert 1 <= len(result["again"]) <= NUM_THREADS
    assert set(result["again"]).isdisjoint(result["used"])
    assert result["statuses"] == [302]
    assert result["left_of_pages"] == []


@pytest.mark.django_db
def test_migrations_are_in_step_with_the_models() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_migrations_go_back_to_zero_and_forth_again() -> None:
    for app in ("bench", "metering", "fleet"):
        call_command("migrate", app, "zero", verbosity=0)
    call_command("migrate", verbosity=0)


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("version", sorted(RELEASES))
def test_todays_schema_breaks_no_code_of_a_release(version, database_url, tmp_path) -> None:
    release = json.dumps(RELEASES[version])
    found = result_of("fleet/databases/schema_changes.py", database_url, tmp_path, release)
    assert found["tables"] > 20
    assert found["broken"] == []
