"""``/docs``: the inference API for people, from the same declarations as its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from helexa_site.web.pages import render_page
from inference.wire.common.fields import Field, Support
from inference.wire.openai.passed.request import ENDPOINTS
from inference.wire.openapi import CALLS, DIALECTS, READS, passed_fields, passed_summary, types_of

VERDICTS = {
    Support.HONOURED: "honoured",
    Support.NEUTRAL: "only a value that changes nothing",
    Support.REFUSED: "refused",
}


@dataclass(frozen=True, slots=True)
class FieldRow:
    name: str
    types: str
    verdict: str
    is_refused: bool
    note: str


@dataclass(frozen=True, slots=True)
class FieldTable:
    title: str
    rows: tuple[FieldRow, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One path; ``nested`` are the objects inside its body."""

    method: str
    path: str
    summary: str
    body: FieldTable | None = None
    nested: tuple[FieldTable, ...] = ()

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
    """Endpoints with a body, in the order of the declarations."""
    found: dict[str, Call] = {}
    for title, fields in DIALECTS.items():
        head, nested, what = title.partition(": ")
        method, _, where = head.partition(" ")
        for path in where.split(" and "):
            if nested:
                call = found.get(path) or Call(method, path, what)  # a socket has no body
                table = FieldTable(what, _rows(fields))
                found[path] = replace(call, nested=(*call.nested, table))
            else:
                found[path] = Call(method, path, CALLS[path], FieldTable("body", _rows(fields)))
    for endpoint in ENDPOINTS:
        rows = tuple(
            FieldRow(name, "", VERDICTS[Support.HONOURED], is_refused=False, note=note)
            for name, note in passed_fields(endpoint)
        )
        body = FieldTable("read of the body; all other fields are the upstream's", rows)
        found[endpoint.path] = Call("POST", endpoint.path, passed_summary(endpoint), body)
    return tuple(found.values())


@cache
def reads() -> tuple[Call, ...]:
    return tuple(Call("GET", path, summary) for path, summary in READS.items())


def _rows(fields: Mapping[str, Field]) -> tuple[FieldRow, ...]:
    order = list(Support)
    rows = sorted(fields.values(), key=lambda field: (order.index(field.support), field.name))
    return tuple(
        FieldRow(
            name=row.name,
            types="" if row.support is Support.REFUSED else " or ".join(types_of(row)),
            verdict=VERDICTS[row.support],
            is_refused=row.support is Support.REFUSED,
            note=row.note,
        )
        for row in rows
    )
