"""``/api/budgets``: hard caps on accounts and on keys."""

from __future__ import annotations

from typing import Any

from fleet.api.rows import RowsView, assigned
from metering import selectors, services
from metering.api.access import AccountingView
from metering.api.shapes import BudgetShape
from metering.models import Budget
from metering.nouns import BUDGETS
from metering.services import Cap


class Budgets(RowsView, AccountingView):
    """Budgets as they stand now, in the order in which they were made."""

    noun = BUDGETS
    serializer_class = BudgetShape
    permission_of = "metering.budget"
    queryset = Budget.objects.order_by("id")
    filters = {"account": "account", "key": "key", "unit": "unit", "window": "window"}
    id_part = "<int:pk>"

    def find(self, pk: int) -> Budget:  # type: ignore[override]
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
