"""The admin's classes and decorators, with the types that unfold and Django do not ship."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from django import forms

if TYPE_CHECKING:
    from django.contrib import admin

    Function = TypeVar("Function", bound=Callable[..., Any])
    AnyForm = forms.ModelForm[Any]
    UnfoldAdmin = admin.ModelAdmin[Any]

    def display(
        *, description: str, ordering: str | None = None, label: dict[Any, str] | None = None
    ) -> Callable[[Function], Function]: ...

    def action(*, description: str, permissions: list[str]) -> Callable[[Function], Function]: ...
else:
    from unfold.admin import ModelAdmin as UnfoldAdmin
    from unfold.decorators import action, display

    AnyForm = forms.ModelForm

__all__ = ["AnyForm", "UnfoldAdmin", "action", "display"]
