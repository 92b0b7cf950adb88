"""Two gateways' writers, each with its thread and its connection, at one budget."""

from __future__ import annotations

import asyncio

from metering.errors import QuotaExceededError
from metering.ledger.writer import LedgerWriter
from metering.models import Budget, LedgerEntry, Reservation, UsageHour
from tests.metering.operations import make_budget, reserve, settle

LONG_S = 300.0


def test_of_many_at_once_exactly_what_fits_is_granted(using: str) -> None:
    """10,000 requests, room for 1,000."""
    room, wide = make_budget(using, cap=1_000 * 7), make_budget(using, cap=10**12)
    writers = [LedgerWriter(f"g{number}", using=using) for number in range(2)]

    async def ask(number: int) -> str | None:
        request = reserve(
            f"r{number}", budgets=(room, wide), prompt_tokens=5, output_tokens=2, gateway_id="g"
        )
        try:
            await writers[number % 2].reserve(request)
        except QuotaExceededError:
            return None
        return request.request_id

    async def scenario() -> list[str]:
        for writer in writers:
            writer.start()
        asked = await asyncio.gather(*(ask(number) for number in range(10_000)))
        granted = [id for id in asked if id is not None]
        for number, id in enumerate(granted):
            entry = settle(
                id, budgets=(room, wide), prompt_tokens=4, completion_tokens=2, reasoning_tokens=0
            )
            writers[number % 2].settle(entry)
            writers[1 - number % 2].settle(entry)
        for writer in writers:
            await writer.stop(LONG_S)
        return granted

    granted = asyncio.run(scenario())
    assert len(granted) == 1_000
    assert not Reservation.objects.using(using).exists()
    for budget_id in (room, wide):
        budget = Budget.objects.using(using).get(id=budget_id)
        assert (budget.spent, budget.reserved) == (6_000, 0)
    assert LedgerEntry.objects.using(using).count() == 1_000
    assert sum(hour.requests for hour in UsageHour.objects.using(using).all()) == 1_000
