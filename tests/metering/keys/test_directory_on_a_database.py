"""The directory over a database, whose rows others change meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection

from metering import services
from metering.actor import COMMAND
from metering.errors import RevokedKeyError
from metering.keys.directory import KeyDirectory
from metering.models import Account, ApiKey
from tests.metering.keys.directory_support import until, until_refused


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
