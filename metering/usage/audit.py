"""``/usage/audit``, for operators: the audit, with filters."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from helexa_site.pages import render_page
from metering.links import audited_url
from metering.models import AuditEntry
from metering.services.audit import CHANGED_FIELDS
from metering.usage.reader import Reader, for_operators

PER_PAGE = 50


class AuditFilter(forms.Form):
    actor = forms.CharField(required=False, max_length=200)
    action = forms.CharField(required=False, max_length=64)
    object_id = forms.CharField(required=False, max_length=200, label="Object")
    first = forms.DateField(
        required=False, label="From", widget=forms.DateInput(attrs={"type": "date"})
    )
    last = forms.DateField(
        required=False, label="To", widget=forms.DateInput(attrs={"type": "date"})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "hx-input"


@for_operators
@require_GET
def audit_page(request: HttpRequest, _reader: Reader) -> HttpResponse:
    if not request.user.has_perm("metering.view_auditentry"):
        raise PermissionDenied
    form = AuditFilter(request.GET)
    entries = AuditEntry.objects.all()
    if form.is_valid():
        entries = entries.filter(**_conditions(form.cleaned_data))
    page = Paginator(entries, PER_PAGE).get_page(request.GET.get("page"))
    chosen = {name: value for name, value in request.GET.items() if value and name != "page"}
    context = {
        "form": form,
        "page": page,
        "rows": [
            (entry, audited_url(entry.action, entry.object_id), _detail(entry)) for entry in page
        ],
        "query": urlencode(chosen),
    }
    return render_page(request, "metering/audit.html", title="Audit", context=context)


def _conditions(given: dict[str, Any]) -> dict[str, Any]:
    words = {
        f"{name}__icontains": given[name]
        for name in ("actor", "action", "object_id")
        if given[name]
    }
    if given["first"]:
        words["at__gte"] = datetime.combine(given["first"], time(), UTC)
    if given["last"]:
        words["at__lt"] = datetime.combine(given["last"], time(), UTC) + timedelta(days=1)
    return words


def _detail(entry: AuditEntry) -> str:
    parts = []
    for name, value in entry.detail.items():
        is_change = _is_change(entry, name, value)
        words = [word if isinstance(word, str) else json.dumps(word) for word in _list(value)]
        parts.append(f"{name}: {' → '.join(words) if is_change else ', '.join(words)}")
    return "; ".join(parts)


def _is_change(entry: AuditEntry, name: str, value: Any) -> bool:
    """Whether ``value`` is an old and a new one. Other lists of two are values themselves."""
    is_update = entry.action.endswith(".update") and name != CHANGED_FIELDS
    return is_update and isinstance(value, list) and len(value) == 2


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
