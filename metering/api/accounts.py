"""Accounts, their members, and their hard caps.

Keys need ``accounts:read`` and ``accounts:write``, people the admin's permissions.
"""

from __future__ import annotations

from typing import Any

from fleet.api.access import FleetView
from fleet.api.rows import RowsView, assigned
from metering import selectors, services
from metering.api.shapes import AccountShape, BudgetShape, MemberShape
from metering.errors import ScopeNotHeldError
from metering.models import Account, Budget, Membership
from metering.nouns import ACCOUNTS, BUDGETS, MEMBERS
from metering.principal import Scope
from metering.services import Cap

SHOWN_ONCE = {"Cache-Control": "no-store"}


class AccountingView(FleetView):
    read_scope = Scope.ACCOUNTS_READ
    write_scope = Scope.ACCOUNTS_WRITE
    reads_by_permission = True

    def ensure_may_grant(self, scopes: list[str]) -> None:
        """A key grants only what it may do itself. Raises ``ScopeNotHeldError``."""
        caller = self.caller
        if caller.is_command or caller.username is not None:
            return
        held = {str(scope) for scope in caller.principal.scopes} if caller.principal else set()
        if lacking := sorted(set(scopes) - held):
            raise ScopeNotHeldError(
                f"This key cannot grant the scope {lacking[0]}, which it does not have itself."
            )


class Accounts(RowsView, AccountingView):
    noun = ACCOUNTS
    serializer_class = AccountShape
    permission_of = "metering.account"
    queryset = Account.objects.prefetch_related("memberships__user", "budgets").order_by("name")

    def find(self, name: str) -> Account:
        return selectors.account_find(name)

    def add(self, values: dict[str, Any]) -> Account:
        return services.account_create(actor=self.actor, **values)

    def change(self, account: Account, values: dict[str, Any]) -> None:
        """Changes the given fields. The keys of a disabled account are refused from then on."""
        fields = assigned(account, values)
        services.account_update(actor=self.actor, account=account, changed_fields=fields)

    def remove(self, account: Account) -> None:
        """Deletes an account, if it never had a key: the ledger names any other."""
        services.account_delete(actor=self.actor, account=account)


class Members(RowsView, AccountingView):
    """People in accounts."""

    noun = MEMBERS
    serializer_class = MemberShape
    permission_of = "metering.membership"
    queryset = Membership.objects.select_related("user").order_by("account", "user__username")
    id_part = "<str:account>/<str:user>"

    def find(self, account: str, user: str) -> Membership:
        return selectors.member_find(account, user)

    def add(self, values: dict[str, Any]) -> Membership:
        """Adds the person, or changes their role."""
        return services.membership_set(
            actor=self.actor,
            account=selectors.account_find(values["account"]),
            user=selectors.user_find(values["user"]),
            role=values["role"],
        )

    def change(self, member: Membership, values: dict[str, Any]) -> Membership:
        return services.membership_set(
            actor=self.actor, account=member.account, user=member.user, role=values["role"]
        )

    def remove(self, member: Membership) -> None:
        services.membership_remove(actor=self.actor, membership=member)


class Budgets(RowsView, AccountingView):
    """Budgets with their present amounts, in the order in which they were made."""

    noun = BUDGETS
    serializer_class = BudgetShape
    permission_of = "metering.budget"
    queryset = Budget.objects.order_by("id")
    id_part = "<int:pk>"

    def find(self, pk: int) -> Budget:
        return selectors.budget_find(pk)

    def add(self, values: dict[str, Any]) -> Budget:
        """Adds a budget to an account or to a key."""
        account, key = values.pop("account", None), values.pop("key", None)
        return services.budget_create(
            actor=self.actor,
            cap=Cap(**values),
            account=None if account is None else selectors.account_find(account),
            key=None if key is None else selectors.key_find(key),
        )

    def change(self, budget: Budget, values: dict[str, Any]) -> None:
        """The cap and its window. A higher cap tops up a balance."""
        fields = assigned(budget, values)
        services.budget_update(actor=self.actor, budget=budget, changed_fields=fields)

    def remove(self, budget: Budget) -> None:
        services.budget_remove(actor=self.actor, budget=budget)
