"""``/api/accounts`` and ``/api/members``: who pays, and who belongs to them."""

from __future__ import annotations

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.response import Response

from fleet.api.access import Call, FleetListView
from fleet.api.removal import removal_schema, removed
from fleet.nouns.bodies import change_schema, changed_row, new_row, new_schema
from metering import selectors, services
from metering.api.access import AccountingView
from metering.api.shapes import AccountShape, MemberShape
from metering.models import Account, Membership
from metering.nouns import ACCOUNTS, MEMBERS


class AccountsView(FleetListView, AccountingView):
    serializer_class = AccountShape
    permission_of = "metering.account"
    queryset = Account.objects.prefetch_related("memberships__user", "budgets").order_by("name")
    filters = {"enabled": "enabled"}

    @extend_schema(request=new_schema("AccountStart", ACCOUNTS), responses={201: AccountShape})
    def post(self, call: Call) -> Response:
        account = services.account_create(actor=self.actor, **new_row(call, ACCOUNTS))
        return Response(self.get_serializer(account).data, status=201)


class AccountView(AccountingView):
    serializer_class = AccountShape
    permission_of = "metering.account"
    queryset = Account.objects.none()

    def get(self, call: Call, name: str) -> Response:
        return Response(self.get_serializer(selectors.account_find(name)).data)

    @extend_schema(request=change_schema("AccountChange", ACCOUNTS))
    def patch(self, call: Call, name: str) -> Response:
        """The fields that are given. The keys of a disabled account are refused from then on."""
        account, changed = selectors.account_find(name), changed_row(call, ACCOUNTS)
        for field, value in changed.items():
            setattr(account, field, value)
        services.account_update(actor=self.actor, account=account, changed_fields=list(changed))
        return Response(self.get_serializer(account).data)

    @removal_schema
    def delete(self, call: Call, name: str) -> Response:
        """Deletes an account, if it never had a key: the ledger names any other."""
        account = selectors.account_find(name)
        remove = partial(services.account_delete, actor=self.actor, account=account)
        return removed(call, self.actor, remove)


class MembersView(FleetListView, AccountingView):
    """People in accounts."""

    serializer_class = MemberShape
    permission_of = "metering.membership"
    queryset = Membership.objects.select_related("user").order_by("account", "user__username")
    filters = {"account": "account", "user": "user__username", "role": "role"}

    @extend_schema(request=new_schema("MemberStart", MEMBERS), responses={201: MemberShape})
    def post(self, call: Call) -> Response:
        """Adds the person, or changes their role."""
        body = new_row(call, MEMBERS)
        member = services.membership_set(
            actor=self.actor,
            account=selectors.account_find(body["account"]),
            user=selectors.user_find(body["user"]),
            role=body["role"],
        )
        return Response(self.get_serializer(member).data, status=201)


class MemberView(AccountingView):
    serializer_class = MemberShape
    permission_of = "metering.membership"
    queryset = Membership.objects.none()

    def get(self, call: Call, account: str, user: str) -> Response:
        return Response(self.get_serializer(selectors.member_find(account, user)).data)

    @extend_schema(request=change_schema("MemberChange", MEMBERS))
    def patch(self, call: Call, account: str, user: str) -> Response:
        member, changed = selectors.member_find(account, user), changed_row(call, MEMBERS)
        if "role" in changed:
            member = services.membership_set(
                actor=self.actor, account=member.account, user=member.user, role=changed["role"]
            )
        return Response(self.get_serializer(member).data)

    @removal_schema
    def delete(self, call: Call, account: str, user: str) -> Response:
        member = selectors.member_find(account, user)
        remove = partial(services.membership_remove, actor=self.actor, membership=member)
        return removed(call, self.actor, remove)
