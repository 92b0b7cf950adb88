"""Ollama's pull: what to download and to offer, and its lines of progress. Pure.

Source: https://docs.ollama.com/api/pull.

    a name of /api/tags        the files of that model of the catalogue
    hf.co/org/name[:QUANT]     huggingface:org/name, as Ollama's clients write it
    huggingface:…, pypi:…      a source, as the catalogue has it; named sources too
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from inference.wire.common.fields import (
    flag,
    honoured,
    neutral,
    only,
    read_fields,
    read_json_object,
    table,
)
from inference.wire.errors import MissingParameterError
from inference.wire.ollama.fields import catalogue_name, model_name

HUB_PREFIXES = ("hf.co/", "huggingface.co/")
SOURCE_SCHEMES = ("huggingface:", "pypi:", "path:")

FIELDS = table(
    honoured("model", model_name, "A name of /api/tags, hf.co/org/name:QUANT, or a source."),
    honoured("name", model_name, "The older word for it."),
    honoured("stream", flag, "true: lines of progress; false: one line at the end."),
    neutral(
        "insecure",
        only(False, reason="Downloads are over verified connections alone."),
        "Only false.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A model of the catalogue, or a source and which file or quant of it. ``called``: the name as
    the client will ask for it once it is there."""

    model: str | None = None
    source: str | None = None
    file: str | None = None
    called: str = ""
    stream: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PullState:
    """How a download goes. ``id`` names it; ``where`` is its neuron."""

    id: str
    where: str
    status: str
    """pending, running, succeeded, failed or cancelled."""
    is_ours: bool = False
    """This pull began the download; else it was under way."""
    bytes_done: int = 0
    bytes_total: int = 0
    failure_code: str = ""
    failure_message: str = ""

    @property
    def has_ended(self) -> bool:
        return self.status not in ("pending", "running")


def parse(
    body: bytes, _context: object = None, *, named_sources: Sequence[str] = ()
) -> PullRequest:
    """``named_sources``: names of hubs beside Hugging Face. Raises ``ApiError`` (400)."""
    read = read_fields(read_json_object(body), FIELDS)
    name = read.get("model", read.get("name"))
    if name is None:
        raise MissingParameterError("model")
    stream, called = read.get("stream", True), catalogue_name(name)
    for prefix in HUB_PREFIXES:
        if called.startswith(prefix):
            repository, _, quant = called.removeprefix(prefix).partition(":")
            source = f"huggingface:{repository}"
            return PullRequest(source=source, file=quant or None, called=called, stream=stream)
    if called.startswith((*SOURCE_SCHEMES, *(f"{name}:" for name in named_sources))):
        return PullRequest(source=called, called=called, stream=stream)
    return PullRequest(model=called, called=called, stream=stream)


def progress_line(state: PullState) -> bytes:
    if state.status == "succeeded":
        return _line({"status": "success"})
    if not state.bytes_total:
        return _line({"status": f"pulling to {state.where}"})
    # Clients draw one bar for each digest. The files' digests are unknown until they are here.
    digest = f"sha256:{hashlib.sha256(state.id.encode()).hexdigest()}"
    return _line(
        {
            "status": f"pulling to {state.where}",
            "digest": digest,
            "total": state.bytes_total,
            "completed": min(state.bytes_done, state.bytes_total),
        }
    )


def _line(fields: dict[str, object]) -> bytes:
    return orjson.dumps(fields) + b"\n"
