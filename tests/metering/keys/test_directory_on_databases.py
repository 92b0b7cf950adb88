"""The directory over a database, whose rows others change meanwhile; and the tests that read
databases on PostgreSQL as well."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from django.db import connection

from metering import services
from metering.actor import COMMAND
from metering.errors import RevokedKeyError
from metering.keys.directory import KeyDirectory
from metering.models import Account, ApiKey
from tests.metering.keys.directory_support import until, until_refused
from tests.own_python import run_python

FOLDER = Path(__file__).parent
WITH_A_KEY = {"HELEXA_SECRET_KEY": "of this test alone, and long enough to be one"}
DATABASE_TESTS = (
    "services/test_services.py",
    "commands/test_commands.py",
    "api/test_api.py",
    "bench/test_command.py",
    "bench/test_importing.py",
    "bench/test_results.py",
    "keys/test_directory_on_databases.py",
    "keys/test_store.py",
)


@pytest.mark.django_db(transaction=True)
def test_a_key_that_is_revoked_elsewhere(account: Account) -> None:
    """The gateway gets no message: its directory reads the revision."""
    first, second = (services.key_create(actor=COMMAND, account=account) for _ in range(2))

    async def scenario() -> None:
        directory = KeyDirectory()
        directory.start()
        for made in (first, second):
            assert (await directory.find(made.key)).account == "research"
        anonymous = Account(name="anonymous", requests_per_minute=7)
        await asyncio.to_thread(revoke, first.row, anonymous)
        await until_refused(directory, first.key, RevokedKeyError)
        await until(lambda: directory.anonymous().account_limits.requests_per_minute == 7)
        assert (await directory.find(second.key)).account == "research"
        await directory.stop()

    asyncio.run(scenario())
    assert not ApiKey.objects.filter(last_used_at=None).exists()


def revoke(key: ApiKey, anonymous: Account) -> None:
    services.key_revoke(actor=COMMAND, key=key)
    services.account_update(
        actor=COMMAND, account=anonymous, changed_fields=["requests_per_minute"]
    )
    connection.close()


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.limit_s(600)
def test_the_database_tests_pass_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    paths = [str(FOLDER.parent / name) for name in DATABASE_TESTS]
    pytest_arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *paths)
    output = run_python(postgres_url, tmp_path, *pytest_arguments, **WITH_A_KEY)
    assert " passed" in output
