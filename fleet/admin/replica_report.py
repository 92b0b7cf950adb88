"""A replica's load report and its recent errors, as its page prints them."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from fleet.lifecycles import LoadJobStatus
from fleet.management.sizes import size_text
from fleet.models import LoadJob, Neuron, Replica
from metering.requests.shown import (
    ERRORS_FOR,
    MAX_ERRORS,
    RecentError,
    request_errors,
)


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
        ("Vectors", _vectors(report)),
        ("Ranks take", _ranks(report)),
        ("Divided", _stages(report)),
        ("Devices take", _stage_memory(report)),
        ("Tokens per second", _prediction(report, replica)),
        ("Decode step", report.get("compiled", "")),
        ("Drafts", report.get("speculation", "")),
        ("Drafts that were right", _acceptance(replica)),
        ("Loaded in", _seconds(report.get("load_seconds"))),
        ("Sampling defaults", _defaults(report.get("generation_defaults") or {})),
        ("Structured output", report.get("grammar_problem") or ""),
        ("Chat template", report.get("template_problem") or ""),
        ("Warnings", "; ".join(report.get("warnings") or [])),
    ]
    return [(name, str(value)) for name, value in rows if value]


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


def _count(number: int | None) -> str:
    return f"{number:,}" if number else ""


def _tokens(number: int | None) -> str:
    return f"{number:,} tokens" if number else ""


def _ranks(report: dict[str, Any]) -> str:
    """Describes each rank's actual and estimated memory. Keys and values are left out: they are the
    same size on every rank."""
    return "; ".join(
        f"{rank['rank']} on {rank['device']}: {_size(rank['actual_bytes'])}, "
        f"{_size(rank['estimated_bytes'])} were estimated"
        for rank in report.get("ranks") or []
    )


def _stages(report: dict[str, Any]) -> str:
    return "; ".join(
        f"layers {stage['layers'][0]} to {stage['layers'][1] - 1} on {_device(stage)}: "
        f"{_size(stage['estimated_bytes'])} estimated, {_size(stage['kv_bytes'])} of keys and "
        "values"
        for stage in report.get("stages") or []
    )


def _stage_memory(report: dict[str, Any]) -> str:
    return "; ".join(
        f"{one['device']}: {_size(one['actual_bytes'] + one['process_bytes'])}"
        for one in report.get("stage_memory") or []
    )


def _device(stage: dict[str, Any]) -> str:
    where = f" of {stage['neuron']}" if stage.get("neuron") else ""
    return f"{stage['device']}{where}"


def _prediction(report: dict[str, Any], replica: Replica) -> str:
    predicted = report.get("predicted_tokens_per_s")
    if not predicted:
        return ""
    return (
        f"{predicted:.1f} were predicted for one request; {replica.decode_tokens_per_s:.1f} are "
        "measured, of all requests together"
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
