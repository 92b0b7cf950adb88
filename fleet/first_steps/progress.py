"""Which of the first steps are done. Derived from what there is: nothing else is stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User

from fleet.models import Invitation, Neuron
from metering.ledger.entries import Outcome
from metering.models import Account, ApiKey, RequestRecord
from metering.playground.accounts import without_playground_keys
from metering.principal import BUILT_IN_ACCOUNTS

FIRST_ACCOUNT = "team"
MAX_ACCOUNTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSteps:
    has_key: bool
    request_id: str
    """The id of the newest request that was answered; empty: none was."""
    request_at: datetime | None
    has_host: bool
    """Whether there is a second host, or an invitation of one."""
    has_person: bool
    """Whether there is a second person."""
    accounts: tuple[str, ...]
    """The accounts that a key can be made for. Empty: ``FIRST_ACCOUNT`` is made with the key."""

    @property
    def is_done(self) -> bool:
        return self.has_key and bool(self.request_id) and self.has_host and self.has_person


def first_steps() -> FirstSteps:
    """Makes five queries."""
    answered = (
        RequestRecord.objects.filter(outcome=Outcome.ANSWERED)
        .order_by("-at")
        .values_list("request_id", "at")
        .first()
    )
    accounts = Account.objects.filter(enabled=True).exclude(name__in=BUILT_IN_ACCOUNTS)
    return FirstSteps(
        has_key=without_playground_keys(ApiKey.objects.filter(revoked_at=None)).exists(),
        request_id="" if answered is None else answered[0].hex,
        request_at=None if answered is None else answered[1],
        has_host=Invitation.objects.exists() or Neuron.objects.count() > 1,
        has_person=User.objects.count() > 1,
        accounts=tuple(accounts.values_list("name", flat=True)[:MAX_ACCOUNTS]),
    )
