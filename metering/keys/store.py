"""Reads keys, accounts and memberships from the database, by blocking queries.

Made for a thread of its own, whose connection stays open between queries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime

from django.db import connection, connections
from django.db.models import Q, QuerySet
from django.utils import timezone

from metering.keys.records import AccountRecord, KeyRecord, MembershipRecord
from metering.models import Account, ApiKey, Budget, Membership, Revision
from metering.principal import BUILT_IN_ACCOUNTS, Principal, Scope

NAMES_A_QUERY = 500
"""SQLite limits the number of parameters in a query."""


class DatabaseKeyStore:
    """The directory's reads. Each method blocks and raises ``django.db.Error``."""

    def revision(self) -> int:
        """``0`` where the row is missing, as before the migrations. In SQL, because each gateway
        asks several times a second, and the ORM would take most of that."""
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT number FROM {Revision._meta.db_table} ORDER BY id LIMIT 1")
            row = cursor.fetchone()
        return row[0] if row else 0

    def keys(self, prefix: str | None = None) -> dict[str, KeyRecord]:
        """The record of each key, or of the one with this prefix, by prefix."""
        keys = ApiKey.objects.all() if prefix is None else ApiKey.objects.filter(prefix=prefix)
        accounts = _budgets(Q(account__in=keys.order_by().values("account")), "account_id")
        own = _budgets(Q(key__in=keys.order_by()), "key_id")
        return {
            row.prefix: key_record(row, (*own[row.prefix], *accounts[row.account_id]))
            for row in keys.select_related("account")
        }

    def memberships(self, user_id: int) -> tuple[MembershipRecord, ...]:
        rows = list(Membership.objects.filter(user=user_id).select_related("account"))
        budgets = _budgets(Q(account__in={row.account_id for row in rows}), "account_id")
        return tuple(
            MembershipRecord(
                account=account_record(row.account, budgets[row.account_id]), role=row.role
            )
            for row in rows
        )

    def account(self, name: str) -> AccountRecord:
        """Raises ``Account.DoesNotExist``."""
        row = Account.objects.get(name=name)
        return account_record(row, _budgets(Q(account=name), "account_id")[name])

    def built_in_accounts(self) -> dict[str, AccountRecord]:
        budgets = _budgets(Q(account__in=BUILT_IN_ACCOUNTS), "account_id")
        rows = Account.objects.filter(name__in=BUILT_IN_ACCOUNTS)
        return {row.name: account_record(row, budgets[row.name]) for row in rows}

    def record_uses(self, prefixes: Collection[str], used_unix_s: float) -> None:
        """A later use that another gateway has recorded stays."""
        used_at = datetime.fromtimestamp(used_unix_s, UTC)
        earlier = Q(last_used_at__isnull=True) | Q(last_used_at__lt=used_at)
        used = list(prefixes)
        for start in range(0, len(used), NAMES_A_QUERY):
            batch = used[start : start + NAMES_A_QUERY]
            ApiKey.objects.filter(earlier, prefix__in=batch).update(last_used_at=used_at)

    def close(self) -> None:
        connections.close_all()


def key_record(row: ApiKey, budgets: tuple[int, ...]) -> KeyRecord:
    known_scopes = {scope.value for scope in Scope}
    principal = Principal(
        account=row.account_id,
        key=row.prefix,
        scopes=frozenset(Scope(word) for word in row.scopes if word in known_scopes),
        models=frozenset(row.model_names) or None,
        weight=row.account.weight,
        budgets=budgets,
        key_limits=row.limits,
        account_limits=row.account.limits,
        names_end_user=row.names_end_user,
        may_leave_network=row.may_leave_network,
        capture_until_unix_s=_latest_unix_s(row.capture_until, row.account.capture_until),
        expires_unix_s=None if row.expires_at is None else row.expires_at.timestamp(),
    )
    return KeyRecord(
        digest=row.digest,
        principal=principal,
        account_enabled=row.account.enabled,
        is_revoked=row.revoked_at is not None,
    )


def account_record(row: Account, budgets: tuple[int, ...]) -> AccountRecord:
    return AccountRecord(
        name=row.name,
        enabled=row.enabled,
        weight=row.weight,
        limits=row.limits,
        budgets=budgets,
        capture_until_unix_s=_latest_unix_s(row.capture_until),
    )


def _latest_unix_s(*moments: datetime | None) -> float | None:
    return max((moment.timestamp() for moment in moments if moment is not None), default=None)


def _budgets(where: Q, owner: str) -> defaultdict[str, tuple[int, ...]]:
    ids: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
    for name, budget in Budget.objects.filter(where).order_by("id").values_list(owner, "id"):
        ids[name] += (budget,)
    return ids


def key_status(key: ApiKey) -> str:
    """``active``, ``expired``, ``disabled`` with its account, or ``revoked``. Reads the account."""
    if key.revoked_at is not None:
        return "revoked"
    if not key.account.enabled:
        return "disabled"
    if key.expires_at is not None and key.expires_at <= timezone.now():
        return "expired"
    return "active"


PLAYGROUND_KEY = {"name": "playground", "scopes": [str(Scope.INFERENCE)]}
"""Version 0.2.0 made a short-lived key like this for each opened tab. The rows stay."""


def without_playground_keys(keys: QuerySet[ApiKey]) -> QuerySet[ApiKey]:
    return keys.exclude(**PLAYGROUND_KEY)
