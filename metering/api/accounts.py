"""Accounts, their members, keys and hard caps. Keys need ``accounts:read`` and ``accounts:write``,
people the admin's permissions."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api.access import FleetView, text_in
from fleet.api.rows import RowShape, RowsView, assigned, new_row, values_of_body
from metering import selectors, services
from metering.api.problems import ProblemError, ensure_one_of, invalid
from metering.errors import MeteringValueError, ScopeNotHeldError
from metering.models import Account, ApiKey, Budget, Membership
from metering.nouns import ACCOUNTS, BUDGETS, KEYS, MEMBERS
from metering.principal import LIMIT_FIELDS, Scope
from metering.selectors import budget_status, key_status
from metering.services import DEFAULT_SCOPES

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
    find = staticmethod(selectors.account_find)

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
    find = staticmethod(selectors.member_find)

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
    find = staticmethod(selectors.budget_find)

    def add(self, values: dict[str, Any]) -> Budget:
        """Adds a budget to an account or to a key."""
        account, key = values.pop("account", None), values.pop("key", None)
        budget = Budget(
            account=None if account is None else selectors.account_find(account),
            key=None if key is None else selectors.key_find(key),
            **values,
        )
        return services.budget_create(actor=self.actor, budget=budget)

    def change(self, budget: Budget, values: dict[str, Any]) -> None:
        """The cap and its window. A higher cap tops up a balance."""
        fields = assigned(budget, values)
        services.budget_update(actor=self.actor, budget=budget, changed_fields=fields)

    def remove(self, budget: Budget) -> None:
        services.budget_remove(actor=self.actor, budget=budget)


STATUSES = ("active", "expired", "disabled", "revoked")
COLUMNS = {"models": "model_names"}
AS_GIVEN = (
    *("name", "scopes", "models", "names_end_user", "may_leave_network"),
    *("expires_at", "capture_until", *LIMIT_FIELDS),
)
CAP_FIELDS = ("unit", "cap", "window", "window_s")


class Keys(RowsView, AccountingView):
    """Newest first, revoked ones too."""

    noun = KEYS
    serializer_class = KeyShape
    permission_of = "metering.apikey"
    queryset = ApiKey.objects.select_related("account").prefetch_related("budgets")
    id_part = "<str:prefix>"
    find = staticmethod(selectors.key_find)
    new_shape = NewKeyShape
    new_fields = {
        "budgets": BudgetShape(many=True, required=False),
        "key": serializers.CharField(required=False, help_text="One that was chosen elsewhere."),
    }

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, MeteringValueError) and exc.field == COLUMNS["models"]:
            exc = MeteringValueError("models", str(exc))
        return super().handle_exception(exc)

    def permission(self, method: str) -> str | None:
        """Revoking changes a key: keys are never deleted."""
        return super().permission("PATCH" if method == "DELETE" else method)

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        found = super().filter_queryset(queryset)
        words = self.request.query_params.get("status")
        return found if words is None else found.filter(_has_status(words))

    def create(self, request: Request) -> Response:
        """Makes a key, or imports the ``key`` that is given. The answer shows it once."""
        body = new_row(request, KEYS, *self.new_fields)
        imported = text_in(body, "key") if "key" in body else None
        self.ensure_may_grant(body.get("scopes", list(DEFAULT_SCOPES)))
        given = {COLUMNS.get(name, name): body[name] for name in AS_GIVEN if name in body}
        created = services.key_create(
            actor=self.actor,
            account=selectors.account_find(body["account"]),
            caps=_caps(body.get("budgets", [])),
            imported=imported,
            **given,
        )
        shown = {"key": created.key, **self.shown(created.row)}
        return Response(shown, status=201, headers=SHOWN_ONCE)

    def change(self, key: ApiKey, values: dict[str, Any]) -> None:
        """Changes the given fields. A revoked key stays as it is."""
        if key.revoked_at is not None:
            raise ProblemError(409, "key_revoked", f"{key.prefix} was revoked: make another key.")
        self.ensure_may_grant(values.get("scopes", []))
        columns = {COLUMNS.get(field, field): value for field, value in values.items()}
        services.key_update(actor=self.actor, key=key, changed_fields=assigned(key, columns))

    def remove(self, key: ApiKey) -> None:
        """Revokes it, on every gateway within a second. Its row stays: the ledger names it."""
        services.key_revoke(actor=self.actor, key=key)


def _has_status(words: str) -> Q:
    now = timezone.now()
    may_be_used = Q(revoked_at=None, account__enabled=True)
    by_status = {
        "active": may_be_used & (Q(expires_at=None) | Q(expires_at__gt=now)),
        "expired": may_be_used & Q(expires_at__lte=now),
        "disabled": Q(revoked_at=None, account__enabled=False),
        "revoked": Q(revoked_at__isnull=False),
    }
    found = Q(pk__in=())
    for word in words.split(","):
        ensure_one_of(STATUSES, "status", word)
        found |= by_status[word]
    return found


def _caps(given: object) -> list[Budget]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise invalid("budgets", "A list of budgets is wanted.")
    fields = tuple(field for field in BUDGETS.fields if field.name in CAP_FIELDS)
    for name in {name for one in given for name in one} - set(CAP_FIELDS):
        detail = f"There is no field {name!r} here: {', '.join(CAP_FIELDS)}."
        raise ProblemError(400, "unknown_parameter", detail, param="budgets")
    return [Budget(**values_of_body(one, fields)) for one in given]
