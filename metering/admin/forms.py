"""The forms of accounts, keys and budgets: the services check their rows."""

from __future__ import annotations

import time
from typing import Any

from django import forms
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelect2MultipleWidget,
    UnfoldAdminTextInputWidget,
)

from fleet.admin.unfold_types import CheckedForm
from fleet.selectors import nameable_models
from metering import services
from metering.errors import MeteringValueError
from metering.models import Account, ApiKey, Budget
from metering.money import amount_text, cap_of
from metering.principal import LIMIT_FIELDS, Scope
from metering.selectors import BudgetStatus, budget_status


class AccountForm(CheckedForm):
    class Meta:
        model = Account
        fields = "__all__"

    def check_row(self) -> None:
        services.account_check(account=self.instance)


class ApiKeyForm(CheckedForm):
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        initial=[scope.value for scope in services.DEFAULT_SCOPES],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
    )
    model_names = forms.MultipleChoiceField(
        required=False,
        label="Models",
        widget=UnfoldAdminSelect2MultipleWidget,
        help_text="What it may use; none means all.",
    )

    class Meta:
        model = ApiKey
        fields = (
            "account",
            "name",
            "scopes",
            "model_names",
            "names_end_user",
            "may_leave_network",
            "expires_at",
            "capture_until",
            *LIMIT_FIELDS,
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """A key keeps models that have left the catalogue until an admin removes them."""
        super().__init__(*args, **kwargs)
        names = sorted({*nameable_models(), *self.instance.model_names})
        self.fields["model_names"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]

    def check_row(self) -> None:
        services.key_check(key=self.instance)


class BudgetForm(CheckedForm):
    """``amount`` is the cap as people write it: whole tokens, or dollars."""

    amount = forms.CharField(
        label="Cap",
        widget=UnfoldAdminTextInputWidget,
        help_text="Tokens, as in 1000000, or US dollars, as in 12.50.",
    )

    class Meta:
        model = Budget
        fields = ("account", "key", "unit", "window", "window_s")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.initial["amount"] = amount_text(self.instance.unit, self.instance.cap)
            if "unit" in self.fields:
                self.fields["unit"].disabled = True

    def _get_validation_exclusions(self) -> set[str]:
        """Leaves the table's constraints to ``check_row``, which reports the same in words for
        people, and at its field."""
        excluded: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return excluded | {"account", "key", "window_s"}

    @property
    def changed_columns(self) -> list[str]:
        return ["cap" if name == "amount" else name for name in self.changed_data]

    def check_row(self) -> None:
        word = self.cleaned_data["amount"].replace(",", "").strip()
        try:
            self.instance.cap = cap_of(self.instance.unit, word)
        except ValueError as error:
            raise MeteringValueError("amount", str(error)) from None
        try:
            services.budget_check(budget=self.instance)
        except MeteringValueError as error:
            field = "amount" if error.field == "cap" else error.field
            raise MeteringValueError(field, str(error)) from None


def status_of(budget: Budget) -> BudgetStatus:
    return budget_status(budget, now_unix_s=time.time())
