"""Request records for people: rows and details of pages, links, CSV and plain fields, and the last
day's errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.utils import timezone

from fleet.dashboard.links import model_url, neuron_url
from helexa_site.templatetags.filters import moment_text
from metering.csv_files import csv_text
from metering.ledger.entries import ERRORS, Outcome
from metering.links import account_url, key_url, request_url, requests_url
from metering.models import CapturedRequest, RequestRecord
from metering.money import cost_text
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
    """``is_operator``: names lead to pages of the admin, whose addresses are ``homes``."""
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
    """Its recorded fields, without missing ones. Names link to their pages, where the reader may
    see those, else to the requests that have them."""
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
    """The captured texts by their titles."""
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
    """Addresses of the pages of its names, without missing ones."""
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


COLUMNS = (
    *("id", "at", "account", "key", "key_name", "end_user", "model_asked", "model", "neuron"),
    *("endpoint", "client", "status", "outcome", "code", "message"),
    *("queue_ms", "time_to_first_token_ms", "duration_ms"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("cost_micro_usd", "is_usage_estimated", "targets_tried", "unit", "num_units"),
)
MAX_CSV_ROWS = 10_000


def all_fields(records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    names = names_of_keys(record.key for record in records)
    return [_fields_of(record, names) for record in records]


def _fields_of(record: RequestRecord, names: dict[str, str]) -> dict[str, Any]:
    own = {
        "id": record.request_id.hex,
        "at": record.at.isoformat(),
        "key_name": names.get(record.key, ""),
    }
    return {name: own[name] if name in own else getattr(record, name) for name in COLUMNS}


def requests_csv(records: Sequence[RequestRecord]) -> str:
    return csv_text(COLUMNS, (fields.values() for fields in all_fields(records)))


ERRORS_FOR = timedelta(days=1)
MAX_ERRORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    at: datetime
    what: str
    message: str
    request_id: str = ""


def request_errors(**where: Any) -> list[RecentError]:
    """Refused and failed requests, newest first. ``where``: columns of request records."""
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
