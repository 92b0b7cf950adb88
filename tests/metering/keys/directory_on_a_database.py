"""A program, run by ``test_directory_on_databases``: a gateway's directory on ``DATABASE_URL``.

Migrates from zero, back and forth, makes two keys, and finds both. Then another process revokes
one with the command. Prints one JSON object: the accounts found first, how the revoked key was
refused, how the other one still stands, the limit of anonymous callers, and how many keys are
known to have been used.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import django
from django.core.management import call_command

MANAGE = Path(__file__).resolve().parents[3] / "manage.py"
GIVE_UP_S = 100.0


async def refusal_of(directory, key: str) -> str:
    """Once it is refused."""
    from metering.errors import KeyRefusedError

    async with asyncio.timeout(GIVE_UP_S):
        while True:
            try:
                await directory.find(key)
            except KeyRefusedError as error:
                return type(error).__name__
            await asyncio.sleep(0.05)


async def run_manage(*words: str) -> None:
    command = [sys.executable, str(MANAGE), *words]
    await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)


async def ask(first, second) -> dict[str, object]:
    from metering.keys import directory as module

    module.LOOK_UP_TIMEOUT_S = GIVE_UP_S
    directory = module.KeyDirectory()
    directory.start()
    found = [(await directory.find(made.key)).account for made in (first, second)]
    limit = directory.anonymous().account_limits.requests_per_minute
    await run_manage("keys", "revoke", first.row.prefix)
    refusal = await refusal_of(directory, first.key)
    still = (await directory.find(second.key)).account
    await directory.stop()
    return {"found": found, "refusal": refusal, "still": still, "anonymous": limit}


def main() -> None:
    django.setup()
    call_command("migrate", verbosity=0)
    call_command("migrate", "metering", "zero", verbosity=0)
    call_command("migrate", verbosity=0)

    from metering import services
    from metering.actor import COMMAND
    from metering.models import Account, ApiKey

    anonymous = Account.objects.get(name="anonymous")
    anonymous.requests_per_minute = 7
    services.account_update(
        actor=COMMAND, account=anonymous, changed_fields=["requests_per_minute"]
    )
    account = services.account_create(actor=COMMAND, name="research")
    first, second = (services.key_create(actor=COMMAND, account=account) for _ in range(2))
    result = asyncio.run(ask(first, second))
    used = ApiKey.objects.exclude(last_used_at=None).count()
    json.dump({**result, "used": used}, sys.stdout)


if __name__ == "__main__":
    main()
