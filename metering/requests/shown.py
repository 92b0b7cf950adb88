"""Request records for people: rows and details of pages, links, CSV and plain fields, and the last
day's errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from fleet.dashboard.links import model_url, neuron_url
from helexa_site.web.moments import moment_text
from metering import selectors
from metering.csv_files import csv_text
from metering.ledger.entries import ERRORS, Outcome
from metering.links import account_url, key_url, request_url, requests_url
from metering.models import CapturedRequest, RequestRecord
from metering.money import cost_text

TONES = {
    Outcome.ANSWERED.value: "good",
    Outcome.CANCELLED.value: "quiet",
    Outcome.REFUSED.value: "warning",
    Outcome.FAILED.value: "bad",
}
NUM_SHOWN_ID_DIGITS = 12
"""An id's milliseconds: see ``inference.request_ids``."""


PAGES = {"account": account_url, "key": key_url, "model": model_url, "neuron": neuron_url}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    record: RequestRecord
    url: str
    id: str
    shown_id: str
    key: str
    tone: str
    total: str
    tokens: str
    cost: str
    homes: dict[str, str]
    """Addresses of the pages of its names; empty where they are not for the reader."""


def shown_id(request_id: str) -> str:
    return request_id[:NUM_SHOWN_ID_DIGITS]


def request_rows(
    records: Iterable[RequestRecord], key_names: Mapping[str, str], *, is_operator: bool
) -> list[RequestRow]:
    """``is_operator``: names lead to pages of the admin."""
    return [
        RequestRow(
            record=record,
            homes=_homes(record) if is_operator else {},
            url=request_url(record.request_id.hex),
            id=record.request_id.hex,
            shown_id=shown_id(record.request_id.hex),
            key=_key(record, key_names.get(record.key, "")),
            tone=TONES[record.outcome],
            total=duration_text(record.duration_ms),
            tokens=_tokens(record),
            cost=cost_text(record.cost_micro_usd) if record.cost_micro_usd else "",
        )
        for record in records
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    name: str
    value: str
    url: str = ""


def details(record: RequestRecord, key_name: str, *, is_operator: bool) -> list[Detail]:
    """Its recorded fields, without missing ones. Names link to their pages, where the reader may
    see those, else to the requests that have them."""
    homes = _homes(record) if is_operator else _requests_of(record)
    found = [
        Detail(name="Ended", value=moment_text(record.at)),
        Detail(name="Account", value=record.account, url=homes.get("account", "")),
        Detail(name="Key", value=_key(record, key_name), url=homes.get("key", "")),
        _linked("End user", "end_user", record.end_user or ""),
        Detail(name="Model asked for", value=record.model_asked),
        Detail(name="Model", value=record.model, url=homes.get("model", "")),
        Detail(name="Neuron", value=record.neuron, url=homes.get("neuron", "")),
        Detail(name="Targets tried before", value=record.targets_tried),
        Detail(name="Endpoint", value=record.endpoint),
        Detail(name="Client", value=record.client),
        Detail(
            name="Status",
            value=str(record.status) if record.status else "no response was sent",
            url=requests_url(status=record.status),
        ),
        _linked("Code", "code", record.code or ""),
        Detail(name="Message", value=record.message),
        Detail(name="Until its work began", value=duration_text(record.queue_ms)),
        Detail(name="Until its first token", value=duration_text(record.time_to_first_token_ms)),
        Detail(name="Until its end", value=duration_text(record.duration_ms)),
        Detail(name="Prompt tokens", value=_prompt(record)),
        Detail(name="Answer tokens", value=_answer(record)),
        Detail(name="Metered", value=_metered(record)),
        Detail(name="Usage", value="estimated" if record.is_usage_estimated else ""),
        Detail(name="Cost", value=cost_text(record.cost_micro_usd)),
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


def _names(record: RequestRecord) -> dict[str, str]:
    return {
        "account": record.account,
        "key": record.key,
        "model": record.model or record.model_asked,
        "neuron": record.neuron,
    }


def _homes(record: RequestRecord) -> dict[str, str]:
    """Addresses of the pages of its names, without missing ones."""
    return {name: PAGES[name](value) for name, value in _names(record).items() if value}


def _requests_of(record: RequestRecord) -> dict[str, str]:
    names = _names(record) | {"model": record.model}
    return {name: requests_url(**{name: value}) for name, value in names.items()}


def _linked(name: str, parameter: str, value: str) -> Detail:
    return Detail(name=name, value=value, url=requests_url(**{parameter: value}) if value else "")


def _key(record: RequestRecord, name: str) -> str:
    return f"{record.key} ({name})" if name else record.key


def _tokens(record: RequestRecord) -> str:
    tokens = record.prompt_tokens + record.completion_tokens
    return f"{tokens:,}" if tokens else ""


def _metered(record: RequestRecord) -> str:
    if not record.unit:
        return ""
    return f"{record.num_units:,} {record.unit}{'' if record.num_units == 1 else 's'}"


def _prompt(record: RequestRecord) -> str:
    if not record.cached_tokens:
        return f"{record.prompt_tokens:,}"
    return f"{record.prompt_tokens:,}, {record.cached_tokens:,} of them cached"


def _answer(record: RequestRecord) -> str:
    if not record.reasoning_tokens:
        return f"{record.completion_tokens:,}"
    return f"{record.completion_tokens:,}, {record.reasoning_tokens:,} of them reasoning"


COLUMNS = (
    *("id", "at", "account", "key", "key_name", "end_user", "model_asked", "model", "neuron"),
    *("endpoint", "client", "status", "outcome", "code", "message"),
    *("queue_ms", "time_to_first_token_ms", "duration_ms"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("cost_micro_usd", "is_usage_estimated", "targets_tried", "unit", "num_units"),
)
MAX_CSV_ROWS = 10_000


def fields_of(record: RequestRecord, key_names: Mapping[str, str]) -> dict[str, Any]:
    own = {
        "id": record.request_id.hex,
        "at": record.at.isoformat(),
        "key_name": key_names.get(record.key, ""),
    }
    return {name: own[name] if name in own else getattr(record, name) for name in COLUMNS}


def all_fields(records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    names = selectors.key_names(records)
    return [fields_of(record, names) for record in records]


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
