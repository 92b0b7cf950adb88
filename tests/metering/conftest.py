"""Databases to write budgets and operations to, and what tests of accounts and keys share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.plugin import DjangoDbBlocker

from metering import key_directory
from metering.audit import COMMAND
from metering.ledger import writer
from metering.models import Account, Revision
from metering.principal import BUILT_IN_ACCOUNTS
from metering.services import CreatedKey, account_create, key_create
from tests.fleet.api.api_support import need_keys
from tests.metering.databases import LONG_S, clear, metering_database
from tests.servers.private_postgres import new_database


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers wait some seconds for the threads of a gateway, which on a busy machine may stand
    still for longer."""
    monkeypatch.setattr(writer, "RESERVE_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(key_directory, "LOOK_UP_TIMEOUT_S", LONG_S)


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
        url = new_database(request.getfixturevalue("postgres_url"))
    with django_db_blocker.unblock(), metering_database(url) as using:
        yield using


@pytest.fixture
def using(ledger_database: str) -> str:
    """The same, empty."""
    clear(ledger_database)
    return ledger_database


@pytest.fixture
def account(db: None) -> Account:
    """Makes an account beside the rows of the migrations, which a test with transactions may have
    flushed."""
    for name in BUILT_IN_ACCOUNTS:
        Account.objects.get_or_create(name=name)
    Revision.objects.get_or_create(pk=1)
    return account_create(actor=COMMAND, name="research", description="the research team")


@pytest.fixture
def operator(account: Account) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("carol"))
    return client


@pytest.fixture
def listens_elsewhere(settings: Any) -> None:
    """Where callers need a key; the host's check lets Django's test client through."""
    need_keys(settings)


@pytest.fixture
def kept_secret_key(settings: Any) -> None:
    """Commands that make keys refuse a signing key that a restart would replace."""
    settings.CONFIG = replace(settings.CONFIG, secret_key_is_kept=True)


@pytest.fixture
def made(account: Account) -> CreatedKey:
    return key_create(actor=COMMAND, account=account, name="ci")
