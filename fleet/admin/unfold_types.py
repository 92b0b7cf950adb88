"""unfold's admin class and decorators, with the types that it does not ship."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from django.contrib import admin

    Function = TypeVar("Function", bound=Callable[..., Any])
    UnfoldAdmin = admin.ModelAdmin[Any]

    def display(
        *, description: str, ordering: str | None = None, label: dict[Any, str] | None = None
    ) -> Callable[[Function], Function]: ...

    def action(*, description: str, permissions: list[str]) -> Callable[[Function], Function]: ...
else:
    from unfold.admin import ModelAdmin as UnfoldAdmin
    from unfold.decorators import action, display

__all__ = ["UnfoldAdmin", "action", "display"]
