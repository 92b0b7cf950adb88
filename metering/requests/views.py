"""``/requests/``: every request that reached a gateway, newest first, with filters in the URL; and
one by its id."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from helexa_site.pages import render_page
from metering import services
from metering.csv_files import csv_response
from metering.errors import MeteringValueError, UnknownNameError
from metering.models import CapturedRequest, RequestRecord
from metering.requests.filters import (
    FILTERS,
    OUTCOMES,
    RequestFilter,
    filter_of,
    request_before,
    request_find,
    requests_list,
)
from metering.requests.shown import (
    MAX_CSV_ROWS,
    TONES,
    bodies,
    details,
    request_rows,
    requests_csv,
    shown_id,
)
from metering.usage.reader import Reader, for_members

ROWS = 50
TITLES = {"id": "Id begins with", "model": "Model", "since": "Since"}
MORE_TITLES = {
    "account": "Account",
    "key": "Key or its name",
    "end_user": "End user",
    "neuron": "Neuron",
    "status": "Status",
    "code": "Code",
    "until": "Until",
}
"""These filters are folded while none of them is set."""
HINTS = {"since": "2h, or 2026-01-31T12:00", "until": "UTC"}


@for_members
@require_GET
def requests_page(request: HttpRequest, reader: Reader) -> HttpResponse:
    """htmx, which polls for the newest, gets the rows alone."""
    visible, problem = _visible(reader), ""
    try:
        where = filter_of(request.GET.dict(), visible=visible, now=timezone.now())
        before = request_before(request.GET.get("before", ""), where=visible)
        if request.GET.get("format") == "csv":
            newest = requests_list(where=where, limit=MAX_CSV_ROWS)
            return csv_response("requests", requests_csv(newest))
        found = requests_list(where=where, limit=ROWS + 1, before=before)
    except MeteringValueError as error:
        problem, found = str(error), []
    context = _context(request, reader, found, problem)
    if request.headers.get("HX-Request"):
        return render(request, "metering/request_rows.html", context)
    return render_page(request, "metering/requests.html", title="Requests", context=context)


@for_members
@require_http_methods(["GET", "POST"])
def request_page(request: HttpRequest, reader: Reader, request_id: str) -> HttpResponse:
    """A POST shows the captured bodies as well, which is audited. Raises ``Http404``, also for a
    request of another account."""
    try:
        record = request_find(request_id, where=_visible(reader))
    except (UnknownNameError, MeteringValueError) as error:
        raise Http404 from error
    is_captured = CapturedRequest.objects.filter(request_id=record.request_id).exists()
    may_read = is_captured and reader.may_read_bodies(record)
    captured = None
    if request.method == "POST":
        if not may_read:
            raise PermissionDenied
        captured = services.captured_request_read(actor=reader.actor, record=record)
    context = {
        "trail": [("requests", "Requests")],
        "may_read": may_read,
        "bodies": {} if captured is None else bodies(captured),
        "record": record,
        "id": record.request_id.hex,
        "tone": TONES[record.outcome],
        "details": details(record, is_operator=reader.is_operator),
    }
    title = f"Request {shown_id(record.request_id.hex)}"
    response = render_page(request, "metering/request.html", title=title, context=context)
    if captured is not None:
        response["Cache-Control"] = "no-store"
    return response


def _context(
    request: HttpRequest, reader: Reader, found: list[RequestRecord], problem: str
) -> dict[str, Any]:
    shown = found[:ROWS]
    chosen = {name: request.GET[name] for name in FILTERS if request.GET.get(name)}
    older = {**chosen, "before": shown[-1].request_id.hex} if len(found) > ROWS else None
    is_newest = "before" not in request.GET
    return {
        "problem": problem,
        "rows": request_rows(shown, is_operator=reader.is_operator),
        "fields": _fields(request, TITLES),
        "more_fields": _fields(request, MORE_TITLES),
        "has_more": not chosen.keys().isdisjoint(MORE_TITLES),
        "outcomes": OUTCOMES,
        "outcome": request.GET.get("outcome", ""),
        "is_newest": is_newest and not problem,
        "live_url": f"?{urlencode(chosen)}",
        "newest_url": f"?{urlencode(chosen)}",
        "older_url": f"?{urlencode(older)}" if older else "",
        "csv_url": f"?{urlencode({**chosen, 'format': 'csv'})}",
        "max_csv_rows": f"{MAX_CSV_ROWS:,}",
    }


def _fields(request: HttpRequest, titles: dict[str, str]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "title": title,
            "value": request.GET.get(name, ""),
            "hint": HINTS.get(name, ""),
        }
        for name, title in titles.items()
    ]


def _visible(reader: Reader) -> RequestFilter:
    return RequestFilter(accounts=None if reader.is_operator else reader.accounts)
