"""A replica's load report and its recent errors, as its page prints them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils import timezone

from fleet.lifecycles import LoadJobStatus, RecordedReplicaStatus
from fleet.management.sizes import size_text
from fleet.models import LoadJob, Neuron, Replica
from metering.requests.shown import ERRORS_FOR, MAX_ERRORS, RecentError, request_errors

Report = dict[str, Any]


def report_rows(replica: Replica) -> list[tuple[str, str]]:
    """The load's results as lines of a name and a text. Missing and empty values are left out."""
    report: Report = {**(replica.report or {}), "replica": replica}
    found = ((name, text_of(report)) for name, text_of in ROWS.items())
    return [(name, str(text)) for name, text in found if text]


def _number(field: str, pattern: str) -> Callable[[Report], str]:
    return lambda report: pattern.format(report[field]) if report.get(field) else ""


def _text(field: str) -> Callable[[Report], Any]:
    return lambda report: report.get(field)


def _size(num_bytes: int | None) -> str:
    return size_text(num_bytes) if num_bytes else ""


def _keys_and_values(report: Report) -> str:
    num_blocks, block_tokens = report.get("num_kv_blocks", 0), report.get("kv_block_tokens", 0)
    if not num_blocks:
        return ""
    dtype = f", in {report['kv_dtype']}" if report.get("kv_dtype") else ""
    return (
        f"{size_text(report.get('kv_bytes'))} for {num_blocks * block_tokens:,} tokens "
        f"({num_blocks:,} blocks of {block_tokens}){dtype}"
    )


def _ranks(report: Report) -> str:
    """Describes each rank's actual and estimated memory. Keys and values are left out: they are the
    same size on every rank."""
    return "; ".join(
        f"{rank['rank']} on {rank['device']}: {_size(rank['actual_bytes'])}, "
        f"{_size(rank['estimated_bytes'])} were estimated"
        for rank in report.get("ranks") or []
    )


def _stages(report: Report) -> str:
    return "; ".join(
        f"layers {stage['layers'][0]} to {stage['layers'][1] - 1} on {stage['device']}"
        f"{' of ' + stage['neuron'] if stage.get('neuron') else ''}: "
        f"{_size(stage['estimated_bytes'])} estimated, {_size(stage['kv_bytes'])} of keys and "
        "values"
        for stage in report.get("stages") or []
    )


def _stage_memory(report: Report) -> str:
    return "; ".join(
        f"{one['device']}: {_size(one['actual_bytes'] + one['process_bytes'])}"
        for one in report.get("stage_memory") or []
    )


def _prediction(report: Report) -> str:
    predicted = report.get("predicted_tokens_per_s")
    if not predicted:
        return ""
    return (
        f"{predicted:.1f} were predicted for one request; "
        f"{report['replica'].decode_tokens_per_s:.1f} are measured, of all requests together"
    )


def _acceptance(report: Report) -> str:
    replica: Replica = report["replica"]
    num_drafted, num_accepted = replica.num_drafted_tokens, replica.num_accepted_drafts
    if not num_drafted:
        return ""
    return f"{num_accepted:,} of {num_drafted:,} ({num_accepted / num_drafted:.0%})"


def _defaults(report: Report) -> str:
    values = report.get("generation_defaults") or {}
    return ", ".join(f"{name} {value}" for name, value in values.items())


ROWS: dict[str, Callable[[Report], Any]] = {
    "Architecture": _text("architecture"),
    "Parameters": _number("num_parameters", "{:,}"),
    "Device": _text("device"),
    "Computes in": _text("dtype"),
    "Weights take": lambda report: _size(report.get("weight_bytes")),
    "Keys and values take": _keys_and_values,
    "Context": _number("context_tokens", "{:,} tokens"),
    "Vectors": _number("embedding_dimensions", "{:,} dimensions"),
    "Ranks take": _ranks,
    "Divided": _stages,
    "Devices take": _stage_memory,
    "Tokens per second": _prediction,
    "Decode step": _text("compiled"),
    "Drafts": _text("speculation"),
    "Drafts that were right": _acceptance,
    "Loaded in": _number("load_seconds", "{:.1f} s"),
    "Sampling defaults": _defaults,
    "Structured output": _text("grammar_problem"),
    "Chat template": _text("template_problem"),
    "Warnings": lambda report: "; ".join(report.get("warnings") or []),
}


def memory_words(replica: Replica) -> str:
    words = _memory_words(replica.report or {})
    if replica.status != RecordedReplicaStatus.ASLEEP:
        return words
    held = f"Asleep: {size_text(replica.memory_bytes or 0)} of its devices"
    away = f", {size_text(replica.host_memory_bytes)} of the host's memory beside that"
    return f"{held}{away if replica.host_memory_bytes else ''}. Awake: {words}"


def _memory_words(report: Report) -> str:
    actual_bytes, estimated_bytes = report.get("actual_bytes", 0), report.get("estimated_bytes", 0)
    if not actual_bytes:
        return ""
    kv = f"{report.get('kv_dtype', '')} KV".strip()
    adapter_bytes = report.get("adapter_bytes", 0)
    room = f" and {size_text(adapter_bytes)} for adapters" if adapter_bytes else ""
    return (
        f"{size_text(actual_bytes)}, of them {size_text(report['kv_bytes'])} {kv}{room}; "
        f"{size_text(estimated_bytes)} were estimated "
        f"({estimated_bytes / actual_bytes - 1:+.1%}). The engine process itself takes "
        f"{size_text(report.get('process_bytes', 0))} more"
    )


def recent_errors(*, model_name: str = "", neuron: Neuron | None = None) -> list[RecentError]:
    """The errors of requests and loads within a day, newest first: of one model, of one neuron, or
    of a model on a neuron."""
    jobs = LoadJob.objects.filter(
        status=LoadJobStatus.FAILED, finished_at__gte=timezone.now() - ERRORS_FOR
    )
    where = {}
    if model_name:
        jobs, where["model"] = jobs.filter(model_name=model_name), model_name
    if neuron is not None:
        jobs, where["neuron"] = jobs.filter(neuron=neuron), neuron.name
    found = request_errors(**where)
    found += [
        RecentError(at=job.finished_at, what=job.kind, message=job.failure_message)
        for job in jobs[:MAX_ERRORS]
        if job.finished_at is not None
    ]
    return sorted(found, key=lambda error: error.at, reverse=True)[:MAX_ERRORS]
