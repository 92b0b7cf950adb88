"""Request records as the page prints them: numbers as text, and where each name leads. Pure but for
addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse

from metering.models import RequestRecord
from metering.money import cost_text
from metering.outcomes import Outcome
from metering.requests.links import requests_url

TONES = {
    Outcome.ANSWERED.value: "good",
    Outcome.CANCELLED.value: "quiet",
    Outcome.REFUSED.value: "warning",
    Outcome.FAILED.value: "bad",
}
NUM_ID_DIGITS = 8
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    url: str
    id: str
    """Its first digits."""
    at: datetime
    account: str
    key: str
    model: str
    neuron: str
    status: str
    outcome: str
    tone: str
    code: str
    message: str
    total: str
    tokens: str
    cost: str


def request_rows(
    records: Iterable[RequestRecord], key_names: Mapping[str, str]
) -> list[RequestRow]:
    return [
        RequestRow(
            url=reverse("request", args=[record.request_id.hex]),
            id=record.request_id.hex[:NUM_ID_DIGITS],
            at=record.at,
            account=record.account or UNKNOWN,
            key=key_names.get(record.key, record.key),
            model=record.model or record.model_asked,
            neuron=record.neuron,
            status=str(record.status or ""),
            outcome=record.outcome,
            tone=TONES[record.outcome],
            code=record.code or "",
            message=record.message,
            total=duration_text(record.duration_ms),
            tokens=_tokens(record),
            cost=cost_text(record.cost_micro_usd) if record.cost_micro_usd else "",
        )
        for record in records
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """``url``: what the value leads to; empty: nothing."""

    name: str
    value: str
    url: str = ""


def details(record: RequestRecord, key_name: str) -> list[Detail]:
    """All that is recorded of it; what there is not is left out."""
    found = [
        Detail(name="Ended", value=f"{record.at:%Y-%m-%d %H:%M:%S} UTC"),
        _linked("Account", "account", record.account),
        Detail(name="Key", value=_key(record, key_name), url=requests_url(key=record.key)),
        _linked("End user", "end_user", record.end_user or ""),
        Detail(name="Model asked for", value=record.model_asked),
        _linked("Model", "model", record.model),
        _linked("Neuron", "neuron", record.neuron),
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
        Detail(name="Cost", value=cost_text(record.cost_micro_usd)),
    ]
    return [detail for detail in found if detail.value]


def duration_text(milliseconds: int | None) -> str:
    """``340 ms`` or ``12.3 s``; empty for ``None``."""
    if milliseconds is None:
        return ""
    return f"{milliseconds:,} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"


def _linked(name: str, parameter: str, value: str) -> Detail:
    return Detail(name=name, value=value, url=requests_url(**{parameter: value}) if value else "")


def _key(record: RequestRecord, name: str) -> str:
    return f"{record.key} ({name})" if name else record.key


def _tokens(record: RequestRecord) -> str:
    tokens = record.prompt_tokens + record.completion_tokens
    return f"{tokens:,}" if tokens else ""


def _prompt(record: RequestRecord) -> str:
    if not record.cached_tokens:
        return f"{record.prompt_tokens:,}"
    return f"{record.prompt_tokens:,}, {record.cached_tokens:,} of them cached"


def _answer(record: RequestRecord) -> str:
    if not record.reasoning_tokens:
        return f"{record.completion_tokens:,}"
    return f"{record.completion_tokens:,}, {record.reasoning_tokens:,} of them reasoning"
