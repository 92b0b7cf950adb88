"""A replica's load report and its recent errors, as its page prints them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from fleet.lifecycles import LoadJobStatus
from fleet.management.sizes import size_text
from fleet.models import LoadJob, Replica
from metering.models import RequestRecord
from metering.outcomes import ERRORS

ERRORS_FOR = timedelta(days=1)
MAX_ERRORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    at: datetime
    what: str
    message: str
    request_id: str = ""


def report_rows(replica: Replica) -> list[tuple[str, str]]:
    """The load's results as lines of a name and a text. Missing and empty values are left out."""
    report: dict[str, Any] = replica.report or {}
    rows = [
        ("Architecture", report.get("architecture", "")),
        ("Parameters", _count(report.get("num_parameters"))),
        ("Device", report.get("device", "")),
        ("Computes in", report.get("dtype", "")),
        ("Weights take", _size(report.get("weight_bytes"))),
        ("Keys and values take", _keys_and_values(report)),
        ("Context", _tokens(report.get("context_tokens"))),
        ("Vocabulary", _count(report.get("vocab_size"))),
        ("Vectors", _vectors(report)),
        ("Ranks take", _ranks(report)),
        ("Decode step", report.get("compiled", "")),
        ("Drafts", report.get("speculation", "")),
        ("Drafts that were right", _acceptance(replica)),
        ("Loaded in", _seconds(report.get("load_seconds"))),
        ("Sampling defaults", _defaults(report.get("generation_defaults") or {})),
        ("Structured output", report.get("grammar_problem") or ""),
        ("Chat template", report.get("template_problem") or ""),
        ("Warnings", "; ".join(report.get("warnings") or [])),
        ("Tokenizer in", report.get("tokenizer_dir", "")),
    ]
    return [(name, str(value)) for name, value in rows if value]


def recent_errors(replica: Replica) -> list[RecentError]:
    """The errors of the replica's requests and loads within a day, newest first."""
    since = timezone.now() - ERRORS_FOR
    requests = RequestRecord.objects.filter(
        at__gte=since,
        model=replica.model_name,
        neuron=replica.neuron.name,
        code__isnull=False,
        outcome__in=ERRORS,
    )
    jobs = LoadJob.objects.filter(
        status=LoadJobStatus.FAILED,
        model_name=replica.model_name,
        neuron=replica.neuron,
        finished_at__gte=since,
    )
    found = [
        RecentError(
            at=one.at,
            what=f"a request ({one.endpoint})",
            message=f"{one.code}: {one.message}" if one.message else str(one.code),
            request_id=one.request_id.hex,
        )
        for one in requests[:MAX_ERRORS]
    ]
    found += [
        RecentError(at=job.finished_at, what=job.kind, message=job.failure_message)
        for job in jobs[:MAX_ERRORS]
        if job.finished_at is not None
    ]
    return sorted(found, key=lambda error: error.at, reverse=True)[:MAX_ERRORS]


def _count(number: int | None) -> str:
    return f"{number:,}" if number else ""


def _tokens(number: int | None) -> str:
    return f"{number:,} tokens" if number else ""


def _ranks(report: dict[str, Any]) -> str:
    """Beside keys and values, which are as many on each."""
    return "; ".join(
        f"{rank['rank']} on {rank['device']}: {_size(rank['actual_bytes'])}, "
        f"{_size(rank['estimated_bytes'])} were estimated"
        for rank in report.get("ranks") or []
    )


def _size(num_bytes: int | None) -> str:
    return size_text(num_bytes) if num_bytes else ""


def _seconds(seconds: float | None) -> str:
    return f"{seconds:.1f} s" if seconds else ""


def _keys_and_values(report: dict[str, Any]) -> str:
    num_blocks, block_tokens = report.get("num_kv_blocks", 0), report.get("kv_block_tokens", 0)
    if not num_blocks:
        return ""
    dtype = f", in {report['kv_dtype']}" if report.get("kv_dtype") else ""
    return (
        f"{size_text(report.get('kv_bytes'))} for {num_blocks * block_tokens:,} tokens "
        f"({num_blocks:,} blocks of {block_tokens}){dtype}"
    )


def _acceptance(replica: Replica) -> str:
    num_drafted, num_accepted = replica.num_drafted_tokens, replica.num_accepted_drafts
    if not num_drafted:
        return ""
    return f"{num_accepted:,} of {num_drafted:,} ({num_accepted / num_drafted:.0%})"


def _vectors(report: dict[str, Any]) -> str:
    dimensions = report.get("embedding_dimensions")
    return f"{dimensions:,} dimensions" if dimensions else ""


def _defaults(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
