"""``/api/budgets``: hard caps on accounts and on keys."""

from __future__ import annotations

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.response import Response

from fleet.api.access import Call, FleetListView
from fleet.api.removal import removal_schema, removed
from fleet.nouns.bodies import change_schema, changed_row, new_row, new_schema
from metering import selectors, services
from metering.api.access import AccountingView
from metering.api.shapes import BudgetShape
from metering.models import Budget
from metering.nouns import BUDGETS
from metering.services import Cap


class BudgetsView(FleetListView, AccountingView):
    """Budgets as they stand now, in the order in which they were made."""

    serializer_class = BudgetShape
    permission_of = "metering.budget"
    queryset = Budget.objects.order_by("id")
    filters = {"account": "account", "key": "key", "unit": "unit", "window": "window"}

    @extend_schema(request=new_schema("BudgetStart", BUDGETS), responses={201: BudgetShape})
    def post(self, call: Call) -> Response:
        """Adds a budget to an account or to a key."""
        body = new_row(call, BUDGETS)
        account, key = body.pop("account", None), body.pop("key", None)
        budget = services.budget_create(
            actor=self.actor,
            cap=Cap(**body),
            account=None if account is None else selectors.account_find(account),
            key=None if key is None else selectors.key_find(key),
        )
        return Response(self.get_serializer(budget).data, status=201)


class BudgetView(AccountingView):
    serializer_class = BudgetShape
    permission_of = "metering.budget"
    queryset = Budget.objects.none()

    def get(self, call: Call, pk: int) -> Response:
        return Response(self.get_serializer(selectors.budget_find(pk)).data)

    @extend_schema(request=change_schema("BudgetChange", BUDGETS))
    def patch(self, call: Call, pk: int) -> Response:
        """The cap and its window. A higher cap tops up a balance."""
        budget, changed = selectors.budget_find(pk), changed_row(call, BUDGETS)
        for field, value in changed.items():
            setattr(budget, field, value)
        services.budget_update(actor=self.actor, budget=budget, changed_fields=list(changed))
        return Response(self.get_serializer(budget).data)

    @removal_schema
    def delete(self, call: Call, pk: int) -> Response:
        budget = selectors.budget_find(pk)
        remove = partial(services.budget_remove, actor=self.actor, budget=budget)
        return removed(call, self.actor, remove)
