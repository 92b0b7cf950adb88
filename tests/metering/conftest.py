"""Budgets and operations with few words, and databases to write them to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.metering.databases import clear, metering_database
from tests.private_postgres import running_postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def ledger_database(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[str]:
    """Django's name of a database with metering's tables."""
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.sqlite3'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with django_db_blocker.unblock(), metering_database(url) as using:
        yield using


@pytest.fixture
def using(ledger_database: str) -> str:
    """The same, empty."""
    clear(ledger_database)
    return ledger_database
