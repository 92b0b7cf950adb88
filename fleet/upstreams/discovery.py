"""Lists an upstream's models, with the limits and prices that it names.

    openai     GET {url}/models       vLLM, llama-server, helexa and OpenRouter name limits too
    anthropic  GET {url}/v1/models
    ollama     GET {url}/api/tags

``models_of`` is pure. Values of unknown form are left out, and no address from an answer is
fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from fleet.catalogue.kinds import MAX_COUNT
from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.entry import Dialect, UpstreamEntry
from fleet.upstreams.http import exchange
from metering.money import MAX_PRICE_MICRO_USD, Prices

if TYPE_CHECKING:
    import httpx2

LIST_PATHS: dict[Dialect, str] = {
    "openai": "/models",
    "anthropic": "/v1/models?limit=1000",
    "ollama": "/api/tags",
}
TIMEOUT_S = 15.0
MAX_BYTES = 4 * 1024 * 1024
MAX_MODELS = 2_000
NAME = re.compile(r"\S{1,300}")
CONTEXT_FIELDS = (
    *("max_model_len", "context_length", "context_window", "max_input_tokens"),
    *("context", "n_ctx"),
)
OUTPUT_FIELDS = ("max_output_tokens", "max_completion_tokens", "max_tokens", "output")
MILLION = 1_000_000
PRICES = ("input_price_micro_usd", "cached_input_price_micro_usd", "output_price_micro_usd")
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """``None``: the endpoint does not name it."""

    id: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    input_price_micro_usd: int | None = None
    """Per million tokens, like the next two."""
    cached_input_price_micro_usd: int | None = None
    output_price_micro_usd: int | None = None

    @property
    def prices(self) -> Prices | None:
        """``None``: it names no price of the prompt, or none of the answer."""
        return Prices.named(
            input=self.input_price_micro_usd,
            cached_input=self.cached_input_price_micro_usd,
            output=self.output_price_micro_usd,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def list_url(entry: UpstreamEntry) -> str:
    return entry.url + LIST_PATHS[entry.dialect]


def discover(client: httpx2.Client, entry: UpstreamEntry) -> list[KnownModel]:
    """Raises ``UpstreamUnavailableError``."""
    answer = exchange(client, "GET", list_url(entry), timeout_s=TIMEOUT_S, max_bytes=MAX_BYTES)
    status = answer.status
    if answer.is_success:
        return models_of(answer.json())
    if status in (UNAUTHORIZED, FORBIDDEN):
        raise UpstreamUnavailableError(f"it does not accept the key ({status})")
    if status == NOT_FOUND:
        raise UpstreamUnavailableError(
            f"it has no list of models (404): the {entry.dialect} API may begin at another URL"
        )
    raise UpstreamUnavailableError(f"its list of models answers with status {status}")


def models_of(body: Any) -> list[KnownModel]:
    """The models that a list's JSON names, sorted by id. Raises ``UpstreamUnavailableError`` where
    it is no list."""
    rows = body.get("data", body.get("models")) if isinstance(body, dict) else None
    if not isinstance(rows, list):
        raise UpstreamUnavailableError("its list of models is not understood")
    found = {model.id: model for model in map(_model, rows[:MAX_MODELS]) if model is not None}
    return [found[name] for name in sorted(found)]


def _model(row: Any) -> KnownModel | None:
    if not isinstance(row, dict):
        return None
    name = row.get("id") or row.get("model") or row.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name) or not name.isprintable():
        return None
    limits = [row, row.get("limit"), row.get("meta"), row.get("top_provider")]
    tables = [table for table in limits if isinstance(table, dict)]
    return KnownModel(
        id=name,
        context_tokens=_count(tables, CONTEXT_FIELDS),
        max_output_tokens=_count(tables, OUTPUT_FIELDS),
        **_prices(row),
    )


def _count(tables: Iterable[dict[str, Any]], names: Iterable[str]) -> int | None:
    values = (table.get(name) for name in names for table in tables)
    return next((value for value in values if type(value) is int and 0 < value <= MAX_COUNT), None)


def _prices(row: dict[str, Any]) -> dict[str, int | None]:
    """A row's prices. OpenRouter writes them as text, in USD for one token; helexa as numbers, in
    USD for a million."""
    for table, tokens, names in (
        ("pricing", 1, ("prompt", "input_cache_read", "completion")),
        ("cost", MILLION, ("input", "cache_read", "output")),
    ):
        if isinstance(named := row.get(table), dict):
            found = (_price(named.get(name), tokens) for name in names)
            return dict(zip(PRICES, found, strict=True))
    return {}


def _price(usd: Any, tokens: int) -> int | None:
    if type(usd) not in (str, int, float):
        return None
    try:
        micro = Decimal(str(usd)) * MILLION * MILLION / tokens
        return round(micro) if 0 <= micro <= MAX_PRICE_MICRO_USD else None
    except InvalidOperation:  # also of a NaN
        return None
