"""Shared by the admin's pages: typed unfold classes, columns, actions, outcomes and links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminTextInputWidget

from fleet.errors import CatalogueValueError, FleetError
from helexa_site.pages import SHOWN_ONCE, render_page
from metering.audit import Actor, user_actor
from metering.errors import MeteringError, MeteringValueError
from metering.money import micro_usd_of, usd_digits

if TYPE_CHECKING:
    AnyForm = forms.ModelForm[Any]
    UnfoldAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    from unfold.admin import ModelAdmin as UnfoldAdmin
    from unfold.admin import TabularInline

    AnyForm = forms.ModelForm


__all__ = ["AnyForm", "TabularInline", "UnfoldAdmin"]


@dataclass(frozen=True, slots=True)
class Outcome:
    level: int
    """One of the levels of ``django.contrib.messages``."""
    message: str
    job_id: str = ""
    """A started job that has not ended; empty: none."""


def show_outcome(request: HttpRequest, outcome: Outcome) -> None:
    """The message stays on its page, so a job's says only that it was started."""
    started = "Started: " if outcome.job_id else ""
    messages.add_message(request, outcome.level, f"{started}{outcome.message}")


def actor_of(request: HttpRequest) -> Actor:
    return user_actor(request.user.get_username())


Fieldsets = tuple[tuple[str | None, Any], ...]


def sections(fields_by_title: Mapping[str, Sequence[str]]) -> Fieldsets:
    return tuple((title or None, {"fields": names}) for title, names in fields_by_title.items())


class OperatedAdmin(UnfoldAdmin):
    operating: ClassVar[str] = "fleet.change_cataloguemodel"
    """The permission for actions: who may change the catalogue may also load and unload."""

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.operating)

    def home_context(self, obj: Any) -> dict[str, Any]:
        return {}

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if context["original"] is not None:
            context.update(self.home_context(context["original"]))
        return super().render_change_form(request, context, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Writes:
    row: str
    create: Callable[..., Any]
    update: Callable[..., object]
    delete: Callable[..., object]


class WrittenAdmin(OperatedAdmin):
    writes: ClassVar[Writes]
    fixed: ClassVar[tuple[str, ...]] = ()
    """Read-only once a row exists: other rows refer to them."""
    recorded: ClassVar[tuple[str, ...]] = ()

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else (*self.fixed, *self.recorded)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = super().get_fieldsets(request, obj)
        has_more = obj is not None and self.recorded
        return (*shown, *sections({"Recorded": self.recorded})) if has_more else shown

    def created(self, actor: Actor, form: AnyForm) -> Any:
        return self.writes.create(actor=actor, **form.cleaned_data)

    def updated(self, actor: Actor, row: Any, form: AnyForm) -> None:
        changed = form.changed_data
        self.writes.update(actor=actor, changed_fields=changed, **{self.writes.row: row})

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        if change:
            self.updated(actor_of(request), obj, form)
        else:
            vars(obj).update(vars(self.created(actor_of(request), form)))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.writes.delete(actor=actor_of(request), **{self.writes.row: obj})

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for row in queryset:
            self.delete_model(request, row)

    def users_of(self, rows: Sequence[Any]) -> Iterable[str]:
        return ()

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        shown, counts, perms_needed, protected = super().get_deleted_objects(objs, request)
        return shown, counts, perms_needed, [*protected, *self.users_of(objs)]

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except (FleetError, MeteringError) as error:
            messages.error(request, str(error))
            return HttpResponseRedirect(request.get_full_path())


class ReadOnlyAdmin(OperatedAdmin):
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReportedAdmin(ReadOnlyAdmin):
    list_before_template = "fleet/refreshing_list.html"


class CheckedForm(AnyForm):
    def check_row(self) -> None:
        """Raises ``CatalogueValueError`` or ``MeteringValueError``."""
        raise NotImplementedError

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        if self.errors:
            return
        try:
            self.check_row()
        except (CatalogueValueError, MeteringValueError) as error:
            self.add_error(error.field if error.field in self.fields else None, str(error))


def checked_form(check: Callable[[Any], object]) -> type[CheckedForm]:
    return type("RowForm", (CheckedForm,), {"check_row": lambda form: check(form.instance)})


def text_field(
    help_text: Any, *, max_length: int | None = None, required: bool = False, label: str = ""
) -> forms.CharField:
    return forms.CharField(
        max_length=max_length,
        required=required,
        label=label or None,
        widget=UnfoldAdminTextInputWidget,
        help_text=help_text,
    )


class UsdField(forms.DecimalField):
    """Exact to the micro-USD; a seventh decimal is refused. Cleans to ``int`` or ``None``."""

    widget = UnfoldAdminDecimalFieldWidget

    def clean(self, value: Any) -> Any:
        usd = super().clean(value)
        return None if usd is None else micro_usd_of(str(usd))

    def prepare_value(self, value: Any) -> Any:
        return usd_digits(value) if isinstance(value, int) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(self.to_python(self.prepare_value(initial)), data)


class ListField(forms.CharField):
    """Cleans to a list. ``separator`` is a regular expression; ``joint`` joins the shown values."""

    def __init__(self, *, separator: str, joint: str, **options: Any) -> None:
        super().__init__(**options)
        self._separator, self._joint = separator, joint

    def clean(self, value: Any) -> Any:
        parts = (part.strip() for part in re.split(self._separator, super().clean(value)))
        return [part for part in parts if part]

    def prepare_value(self, value: Any) -> Any:
        return self._joint.join(value) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.clean(data) != (initial or []))


SURE = "sure"


def ask(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return render_page(request, "fleet/ask_first.html", title="Are you sure?", context=context)


def show_once(
    page: UnfoldAdmin, request: HttpRequest, template: str, title: str, **context: Any
) -> HttpResponse:
    """The page with a secret that is stored nowhere: not in the session, a cache or the history."""
    shown = {"opts": page.opts, **context}
    return render_page(request, template, title=title, context=shown, headers=SHOWN_ONCE)


def asking_first(action: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(action)
    def asking(page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        if SURE in request.POST:
            return action(page, request, queryset)
        return ask(request, asked_of(page, request, queryset))

    return asking


def asked_of(page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> dict[str, Any]:
    name = request.POST.get("action", "")
    _, _, description = page.get_actions(request)[name]
    hidden = [("action", name), *(("_selected_action", one.pk) for one in queryset)]
    return {"description": description, "objects": queryset, "hidden": hidden, "opts": page.opts}


def each_row(
    description: str,
    act: Callable[[Actor, Any], Outcome | Iterable[Outcome]],
    *,
    permission: str = "operate",
    asks: bool = False,
    leads_to: str = "",
) -> Any:

    def on_rows(_page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        for row in list(queryset):
            outcomes = act(actor_of(request), row)
            for outcome in [outcomes] if isinstance(outcomes, Outcome) else outcomes:
                show_outcome(request, outcome)
        return HttpResponseRedirect(reverse(leads_to)) if leads_to else None

    asked = asking_first(on_rows) if asks else on_rows
    return admin.action(description=description, permissions=[permission])(asked)


def column(
    description: str,
    value_of: Callable[[Any], Any],
    *,
    ordering: str | None = None,
    label: dict[Any, str] | None = None,
) -> Any:

    def shown(_page: Any, row: Any) -> Any:
        return value_of(row)

    vars(shown).update(short_description=description, admin_order_field=ordering, label=label)
    return shown


STATUS_LABELS = {
    status: label
    for label, statuses in {
        "success": ("Online", "Ready", "Succeeded", "active", "up to date"),
        "info": ("Loading", "Running"),
        "warning": ("Draining", "Recovering", "Pending", "expired", "disabled", "outdated"),
        "danger": ("Away", "Failed", "revoked", "not in the catalogue"),
        "default": ("Refused", "Asleep", "Cancelled"),
    }.items()
    for status in statuses
}


def status_column() -> Any:
    return column(
        "Status", lambda row: row.get_status_display(), ordering="status", label=STATUS_LABELS
    )


Address = Callable[[str], str]


def linked(name: str, address: Address, text: str | None = None) -> SafeString | str:
    return (
        format_html('<a class="hx-link" href="{}">{}</a>', address(name), text or name)
        if name
        else ""
    )


def linked_list(names: Iterable[tuple[str, str]], address: Address) -> SafeString:
    rows = ((address(name), name, remark and f" ({remark})") for name, remark in names)
    return format_html_join(", ", '<a class="hx-link" href="{}">{}</a>{}', rows)


def linked_column(field: str, address: Address, description: str) -> Any:
    name_of = attrgetter(field.replace("__", "."))
    return column(description, lambda row: linked(name_of(row) or "", address), ordering=field)
