"""``/requests/``: every request that reached a gateway, with filters in the URL, and one by its id.
Other pages use its rows, details and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from fleet.dashboard.links import model_url, neuron_url
from helexa_site.pages import render_page
from helexa_site.templatetags.filters import moment_text
from metering.errors import MeteringValueError, UnknownNameError
from metering.ledger.entries import ERRORS, Outcome
from metering.models import CapturedRequest, RequestRecord
from metering.money import cost_text
from metering.output import csv_response
from metering.pages import Reader, account_url, for_members, key_url, request_url, requests_url
from metering.request_filters import (
    FILTERS,
    MAX_CSV_ROWS,
    OUTCOMES,
    RequestFilter,
    captured_request_read,
    filter_of,
    request_before,
    request_find,
    requests_csv,
    requests_list,
)
from metering.selectors import names_of_keys

TONES = {
    Outcome.ANSWERED.value: "good",
    Outcome.CANCELLED.value: "quiet",
    Outcome.REFUSED.value: "warning",
    Outcome.FAILED.value: "bad",
}
NUM_SHOWN_ID_DIGITS = 12
"""An id's milliseconds: see ``inference.request_ids``."""
PAGES = {"account": account_url, "key": key_url, "model": model_url, "neuron": neuron_url}


def shown_id(request_id: str) -> str:
    return request_id[:NUM_SHOWN_ID_DIGITS]


def request_rows(records: Sequence[RequestRecord], *, is_operator: bool) -> list[dict[str, Any]]:
    names = names_of_keys(record.key for record in records)
    return [
        {
            "record": record,
            "homes": _homes(record) if is_operator else {},
            "url": request_url(record.request_id.hex),
            "id": record.request_id.hex,
            "shown_id": shown_id(record.request_id.hex),
            "key": _named(record.key, names),
            "tone": TONES[record.outcome],
            "total": duration_text(record.duration_ms),
            "tokens": _number(record.prompt_tokens + record.completion_tokens),
            "cost": cost_text(record.cost_micro_usd) if record.cost_micro_usd else "",
        }
        for record in records
    ]


class Detail(NamedTuple):
    name: str
    value: str
    url: str = ""


def details(record: RequestRecord, *, is_operator: bool) -> list[Detail]:
    """Names link to their pages where the reader may see those, else to their requests."""
    of = _homes(record) if is_operator else _requests_of(record)
    of |= {
        name: requests_url(**{name: getattr(record, name)})
        for name in ("end_user", "status", "code")
    }
    key = _named(record.key, names_of_keys([record.key]))
    found = [
        Detail("Ended", moment_text(record.at)),
        Detail("Account", record.account, of.get("account", "")),
        Detail("Key", key, of.get("key", "")),
        Detail("End user", record.end_user or "", of["end_user"]),
        Detail("Model asked for", record.model_asked),
        Detail("Model", record.model, of.get("model", "")),
        Detail("Neuron", record.neuron, of.get("neuron", "")),
        Detail("Targets tried before", record.targets_tried),
        Detail("Endpoint", record.endpoint),
        Detail("Client", record.client),
        Detail("Status", str(record.status or "no response was sent"), of["status"]),
        Detail("Code", record.code or "", of["code"]),
        Detail("Message", record.message),
        Detail("Until its work began", duration_text(record.queue_ms)),
        Detail("Until its first token", duration_text(record.time_to_first_token_ms)),
        Detail("Until its end", duration_text(record.duration_ms)),
        Detail("Prompt tokens", _part(record.prompt_tokens, record.cached_tokens, "cached")),
        Detail(
            "Answer tokens",
            _part(record.completion_tokens, record.reasoning_tokens, "reasoning"),
        ),
        Detail("Metered", _metered(record)),
        Detail("Usage", "estimated" if record.is_usage_estimated else ""),
        Detail("Cost", cost_text(record.cost_micro_usd)),
    ]
    return [detail for detail in found if detail.value]


def bodies(captured: CapturedRequest) -> dict[str, str]:
    found = {
        "Headers": captured.headers,
        "Request": captured.request,
        "Prompt and parsers": captured.trace,
        "Answer": captured.answer,
    }
    return {title: text for title, text in found.items() if text}


def duration_text(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    return f"{milliseconds:,} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"


def _homes(record: RequestRecord) -> dict[str, str]:
    asked = {"model": record.model or record.model_asked}
    names = {name: asked.get(name) or getattr(record, name) for name in PAGES}
    return {name: PAGES[name](value) for name, value in names.items() if value}


def _requests_of(record: RequestRecord) -> dict[str, str]:
    return {name: requests_url(**{name: getattr(record, name)}) for name in PAGES}


def _named(key: str, names: dict[str, str]) -> str:
    return f"{key} ({names[key]})" if key in names else key


def _number(amount: int) -> str:
    return f"{amount:,}" if amount else ""


def _part(tokens: int, part: int, name: str) -> str:
    return f"{tokens:,}, {part:,} of them {name}" if part else f"{tokens:,}"


def _metered(record: RequestRecord) -> str:
    if not record.unit:
        return ""
    return f"{record.num_units:,} {record.unit}{'' if record.num_units == 1 else 's'}"


ERRORS_FOR = timedelta(days=1)
MAX_ERRORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    at: datetime
    what: str
    message: str
    request_id: str = ""


def request_errors(**where: Any) -> list[RecentError]:
    """Newest first. ``where``: columns of request records."""
    since = timezone.now() - ERRORS_FOR
    records = RequestRecord.objects.filter(
        at__gte=since, code__isnull=False, outcome__in=ERRORS, **where
    )
    return [
        RecentError(
            at=one.at,
            what=f"a request ({one.endpoint})",
            message=f"{one.code}: {one.message}" if one.message else str(one.code),
            request_id=one.request_id.hex,
        )
        for one in records.order_by("-at")[:MAX_ERRORS]
    ]


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
    """A POST shows captured bodies, which is audited. Raises ``Http404``, also for others'
    requests."""
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
        captured = captured_request_read(actor=reader.actor, record=record)
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
