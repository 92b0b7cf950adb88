"""``/docs``: the inference API for people, from the same declarations as its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from helexa_site.pages import render_page
from inference.wire.fields import Field, Support
from inference.wire.openai.passed import ENDPOINTS
from inference.wire.openapi import CALLS, DIALECTS, READS, passed_fields, passed_summary, types_of

VERDICTS = {
    Support.HONOURED: "honoured",
    Support.NEUTRAL: "only a value that changes nothing",
    Support.REFUSED: "refused",
}
BODY = "Fields"


class FieldRow(NamedTuple):
    name: str
    types: str
    verdict: str
    note: str


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    summary: str
    tables: list[tuple[str, list[FieldRow]]] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        words = "".join(c if c.isalnum() else " " for c in self.path).split()
        return "-".join((self.method.lower(), *words))


@require_safe
def api_reference(request: HttpRequest) -> HttpResponse:
    context = {"calls": calls(), "reads": reads(), "base_url": request.build_absolute_uri("/v1")}
    return render_page(request, "pages/api_reference.html", title="API reference", context=context)


@cache
def calls() -> tuple[Call, ...]:
    found: dict[str, Call] = {}
    for title, fields in DIALECTS.items():
        head, _, nested = title.partition(": ")
        method, _, where = head.partition(" ")
        for path in where.split(" and "):
            call = found.setdefault(path, Call(method, path, CALLS.get(path, nested)))
            call.tables.append((nested or BODY, _rows(fields)))
    for endpoint in ENDPOINTS:
        honoured = VERDICTS[Support.HONOURED]
        rows = [FieldRow(name, "", honoured, note) for name, note in passed_fields(endpoint)]
        summary = passed_summary(endpoint)
        found[endpoint.path] = Call("POST", endpoint.path, summary, [(BODY, rows)])
    return tuple(found.values())


@cache
def reads() -> tuple[Call, ...]:
    return tuple(Call("GET", path, summary) for path, summary in READS.items())


def _rows(fields: Mapping[str, Field]) -> list[FieldRow]:
    order = list(Support)
    rows = sorted(fields.values(), key=lambda row: (order.index(row.support), row.name))
    return [FieldRow(row.name, _types(row), VERDICTS[row.support], row.note) for row in rows]


def _types(row: Field) -> str:
    return "" if row.support is Support.REFUSED else " or ".join(types_of(row))
