"""Accounts, members, keys and budgets as JSON. Output only."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from rest_framework import serializers

from fleet.api.shapes import RowShape
from metering.keys.store import key_status
from metering.models import Account, ApiKey, Budget, Membership
from metering.selectors import budget_status

AMOUNT = "In the unit."


class BudgetShape(serializers.Serializer[Any]):
    """A budget with its present amounts: a window that is over counts as begun again."""

    id = serializers.IntegerField()
    account = serializers.CharField(allow_null=True)
    key = serializers.CharField(allow_null=True)
    unit = serializers.ChoiceField(choices=Budget.Unit.values)
    cap = serializers.IntegerField(help_text=AMOUNT)
    spent = serializers.IntegerField(help_text=AMOUNT)
    reserved = serializers.IntegerField(help_text=AMOUNT)
    left = serializers.IntegerField(help_text=AMOUNT)
    window = serializers.ChoiceField(choices=Budget.Window.values)
    window_s = serializers.IntegerField(allow_null=True)
    window_ends_unix_s = serializers.IntegerField(allow_null=True)

    def to_representation(self, instance: Budget) -> dict[str, Any]:
        status = asdict(budget_status(instance, now_unix_s=time.time()))
        return {
            "id": status.pop("id"),
            "account": instance.account_id,
            "key": instance.key_id,
            **status,
        }


class MemberShape(RowShape):
    id = serializers.SerializerMethodField(help_text="ACCOUNT/USER")
    user = serializers.CharField(source="user.username")
    account = serializers.CharField(source="account_id")
    role = serializers.ChoiceField(choices=Membership.Role.values)

    class Meta:
        model = Membership
        fields = "__all__"

    def get_id(self, member: Membership) -> str:
        return f"{member.account_id}/{member.user.get_username()}"


class AccountShape(RowShape):
    keys = serializers.SerializerMethodField(help_text="How many it has, revoked ones too.")
    people = serializers.SerializerMethodField(help_text="How many belong to it.")
    members = MemberShape(source="memberships", many=True)
    budgets = BudgetShape(many=True)

    class Meta:
        model = Account
        fields = "__all__"

    def get_keys(self, account: Account) -> int:
        return account.keys.count()

    def get_people(self, account: Account) -> int:
        return len(account.memberships.all())


class KeyShape(RowShape):
    account = serializers.CharField(source="account_id")
    status = serializers.SerializerMethodField(
        help_text="active, expired, disabled with its account, or revoked"
    )
    scopes = serializers.ListField(child=serializers.CharField())
    models = serializers.ListField(source="model_names", child=serializers.CharField())
    budgets = BudgetShape(many=True)

    class Meta:
        model = ApiKey
        exclude = ("digest", "model_names")

    def get_status(self, key: ApiKey) -> str:
        return key_status(key)


class NewKeyShape(KeyShape):
    """``key`` is shown in this answer alone."""

    key = serializers.CharField(read_only=True)
