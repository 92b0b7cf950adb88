"""Shared by the admin's pages: unfold's classes and decorators with their types, bases of pages and
forms, actions that ask first, and links to other pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from django import forms
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet.errors import CatalogueValueError
from helexa_site.web.pages import render_page
from metering.errors import MeteringValueError

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


class HomePageAdmin(UnfoldAdmin):
    """An object's page, with everything else about it above the form."""

    def home_context(self, obj: Any) -> dict[str, Any]:
        raise NotImplementedError

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        shown = self.get_object(request, unquote(object_id))
        context = {} if shown is None else self.home_context(shown)
        return super().change_view(request, object_id, form_url, context | (extra_context or {}))


class ReadOnlyAdmin(UnfoldAdmin):
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReportedAdmin(ReadOnlyAdmin):
    """Reports of neurons: nothing to add, change or delete here."""

    list_before_template = "fleet/refreshing_list.html"

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Users who may change the catalogue may also load and unload."""
        return request.user.has_perm("fleet.change_cataloguemodel")


class CheckedForm(AnyForm):
    def check_row(self) -> None:
        """Raises ``CatalogueValueError`` or ``MeteringValueError``."""
        raise NotImplementedError

    def _post_clean(self) -> None:
        """Shows refusals of the services at the field that Django has filled."""
        super()._post_clean()  # type: ignore[misc]
        if self.errors:
            return
        try:
            self.check_row()
        except (CatalogueValueError, MeteringValueError) as error:
            self.add_error(error.field if error.field in self.fields else None, str(error))


SURE = "sure"


def ask(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return render_page(request, "fleet/ask_first.html", title="Are you sure?", context=context)


Action = Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]


def asking_first(action: Action) -> Action:
    @wraps(action)
    def asking(page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        if SURE in request.POST:
            return action(page, request, queryset)
        name = request.POST.get("action", "")
        _, _, description = page.get_actions(request)[name]
        hidden = [("action", name), *(("_selected_action", one.pk) for one in queryset)]
        context = {"description": description, "objects": queryset, "hidden": hidden}
        return ask(request, context | {"opts": page.opts})

    return asking


Address = Callable[[str], str]


def linked(name: str, address: Address, text: str | None = None) -> SafeString | str:
    """``text``, or the name itself, as a link; empty without a name."""
    return (
        format_html('<a class="hx-link" href="{}">{}</a>', address(name), text or name)
        if name
        else ""
    )


def linked_list(names: Iterable[tuple[str, str]], address: Address) -> SafeString:
    rows = ((address(name), name, remark and f" ({remark})") for name, remark in names)
    return format_html_join(", ", '<a class="hx-link" href="{}">{}</a>{}', rows)


def linked_column(field: str, address: Address, description: str) -> Any:
    """A column of an admin's list. ``field`` is the column's name, with ``__`` for related rows."""
    value_of = attrgetter(field.replace("__", "."))

    @display(description=description, ordering=field)
    def column(_page: Any, row: Any) -> SafeString | str:
        return linked(value_of(row) or "", address)

    return column
