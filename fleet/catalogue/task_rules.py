"""What a model's task lets it have: prices, and limits of tokens.

Every check raises ``CatalogueValueError`` with the field that cannot hold its value. Pure.
"""

from __future__ import annotations

from fleet.catalogue.settings import SETTINGS, TASKS_WITH_TOKENS, CatalogueSettings
from fleet.catalogue.sources import upstream_of
from fleet.catalogue.targets import Target, parse_targets
from fleet.errors import CatalogueValueError
from inference.protocol.sampling import DEFAULTS_OF_MODELS

TOKEN_LIMITS = ("max_context_tokens", "max_output_tokens")
SETTINGS_OF_TOKENS = frozenset(
    {
        *TOKEN_LIMITS,
        "input_price_micro_usd",
        "cached_input_price_micro_usd",
        "output_price_micro_usd",
    }
)
"""Settings of models whose requests have tokens."""


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
