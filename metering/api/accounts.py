"""``/api/accounts`` and ``/api/members``: who pays, and who belongs to them."""

from __future__ import annotations

from typing import Any

from fleet.api.rows import RowsView, assigned
from metering import selectors, services
from metering.api.access import AccountingView
from metering.api.shapes import AccountShape, MemberShape
from metering.models import Account, Membership
from metering.nouns import ACCOUNTS, MEMBERS


class Accounts(RowsView, AccountingView):
    noun = ACCOUNTS
    serializer_class = AccountShape
    permission_of = "metering.account"
    queryset = Account.objects.prefetch_related("memberships__user", "budgets").order_by("name")
    filters = {"enabled": "enabled"}

    def find(self, name: str) -> Account:  # type: ignore[override]
        return selectors.account_find(name)

    def add(self, values: dict[str, Any]) -> Account:
        return services.account_create(actor=self.actor, **values)

    def change(self, account: Account, values: dict[str, Any]) -> None:
        """The fields that are given. The keys of a disabled account are refused from then on."""
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
    filters = {"account": "account", "user": "user__username", "role": "role"}
    id_part = "<str:account>/<str:user>"

    def find(self, account: str, user: str) -> Membership:  # type: ignore[override]
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
