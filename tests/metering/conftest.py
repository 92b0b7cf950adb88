"""Databases to write budgets and operations to, and what tests of accounts and keys share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from metering.actor import COMMAND
from metering.models import Account, Revision
from metering.principal import BUILT_IN_ACCOUNTS
from metering.services import account_create
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


@pytest.fixture(autouse=True)
def _quick_passwords(settings: Any) -> None:
    """Hashing a password as for the world takes longer than most of these tests."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def account(db: None) -> Account:
    """Beside the rows of the migrations, which a test with transactions may have flushed."""
    for name in BUILT_IN_ACCOUNTS:
        Account.objects.get_or_create(name=name)
    Revision.objects.get_or_create(pk=1)
    return account_create(actor=COMMAND, name="research", description="the research team")
