"""Access to an upstream: client options, one bounded exchange, and the list of its models.

    openai     GET {url}/models       vLLM, llama-server, helexa and OpenRouter name limits too
    anthropic  GET {url}/v1/models
    ollama     GET {url}/api/tags

A client follows no redirect and reads no proxy from the environment. Compressed bodies are not
decoded, so none can grow in memory. Values of unknown form are left out of the list.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fleet.catalogue.kinds import MAX_COUNT
from fleet.errors import UpstreamUnavailableError
from fleet.upstreams import Dialect, UpstreamEntry
from metering.money import MAX_PRICE_MICRO_USD, Prices

if TYPE_CHECKING:
    import httpx2

ANTHROPIC_VERSION = "2023-06-01"
FIRST_REDIRECT, FIRST_ERROR = 300, 400
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404

LIST_PATHS: dict[Dialect, str] = {
    "openai": "/models",
    "anthropic": "/v1/models?limit=1000",
    "ollama": "/api/tags",
}
LIST_TIMEOUT_S = 15.0
MAX_LIST_BYTES = 4 * 1024 * 1024
MAX_MODELS = 2_000
MODEL_NAME = re.compile(r"\S{1,300}")
CONTEXT_FIELDS = (
    *("max_model_len", "context_length", "context_window", "max_input_tokens"),
    *("context", "n_ctx"),
)
OUTPUT_FIELDS = ("max_output_tokens", "max_completion_tokens", "max_tokens", "output")
MILLION = 1_000_000
PRICES = ("input_price_micro_usd", "cached_input_price_micro_usd", "output_price_micro_usd")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content_type: str
    body: bytes

    @property
    def is_success(self) -> bool:
        return self.status < FIRST_REDIRECT

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def table(self) -> dict[str, Any]:
        found = self.json()
        return found if isinstance(found, dict) else {}


def headers_of(entry: UpstreamEntry, secret: str) -> dict[str, str]:
    headers = {"accept-encoding": "identity", "user-agent": "helexa"}
    key = {"authorization": f"Bearer {secret}"}
    if entry.dialect == "anthropic":
        headers["anthropic-version"] = ANTHROPIC_VERSION
        key = {"x-api-key": secret}
    return headers | (key if secret else {})


def unversioned(url: str) -> str:
    """vLLM, SGLang, llama-server and helexa have ``/tokenize`` beside ``/v1``."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/v1')}"


def client_options(entry: UpstreamEntry, secret: str) -> dict[str, Any]:
    """For ``httpx2`` clients. Reads the CA file. Raises ``UpstreamUnavailableError``."""
    return {
        "headers": headers_of(entry, secret),
        "verify": _tls(entry),
        "proxy": entry.proxy or None,
        "trust_env": False,
        "follow_redirects": False,
    }


@contextmanager
def opened(entry: UpstreamEntry, secret: str) -> Iterator[httpx2.Client]:
    """Raises ``UpstreamUnavailableError``."""
    import httpx2

    with httpx2.Client(**client_options(entry, secret)) as client:
        yield client


def exchange(
    client: httpx2.Client,
    method: str,
    url: str,
    *,
    timeout_s: float,
    max_bytes: int,
    **sent: Any,
) -> Answer:
    """Sends one request with ``sent``, the body as httpx2 names it. Its answer has at most
    ``max_bytes`` and must be complete within ``timeout_s``. Raises ``UpstreamUnavailableError``,
    whose message has nothing that the endpoint sent."""
    import httpx2

    until_s = time.monotonic() + timeout_s
    try:
        with client.stream(method, url, timeout=timeout_s, **sent) as response:
            if FIRST_REDIRECT <= response.status_code < FIRST_ERROR:
                raise UpstreamUnavailableError(
                    f"it answers with a redirect ({response.status_code}), which is not followed: "
                    "give the URL that it leads to"
                )
            content = bytearray()
            for part in response.iter_raw():
                content += part
                if len(content) > max_bytes:
                    raise UpstreamUnavailableError(f"it answers more than {max_bytes:,} bytes")
                if time.monotonic() > until_s:
                    raise UpstreamUnavailableError(f"its answer takes more than {timeout_s:g} s")
            content_type = response.headers.get("content-type", "")
            return Answer(response.status_code, content_type, bytes(content))
    except httpx2.TimeoutException:
        raise UpstreamUnavailableError(f"it does not answer within {timeout_s:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise UpstreamUnavailableError(f"it cannot be reached ({type(error).__name__})") from None


def _tls(entry: UpstreamEntry) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        if entry.ca_file:
            context.load_verify_locations(entry.ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or type(error).__name__
        raise UpstreamUnavailableError(
            f"its CA file {entry.ca_file} cannot be read here ({reason})"
        ) from None
    return context


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


def list_url(entry: UpstreamEntry) -> str:
    return entry.url + LIST_PATHS[entry.dialect]


def discover(client: httpx2.Client, entry: UpstreamEntry) -> list[KnownModel]:
    """Raises ``UpstreamUnavailableError``."""
    answer = exchange(
        client, "GET", list_url(entry), timeout_s=LIST_TIMEOUT_S, max_bytes=MAX_LIST_BYTES
    )
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
    """Sorted by id. Raises ``UpstreamUnavailableError`` where it is no list."""
    rows = body.get("data", body.get("models")) if isinstance(body, dict) else None
    if not isinstance(rows, list):
        raise UpstreamUnavailableError("its list of models is not understood")
    found = {model.id: model for model in map(_model, rows[:MAX_MODELS]) if model is not None}
    return [found[name] for name in sorted(found)]


def _model(row: Any) -> KnownModel | None:
    if not isinstance(row, dict):
        return None
    name = row.get("id") or row.get("model") or row.get("name")
    if not isinstance(name, str) or not MODEL_NAME.fullmatch(name) or not name.isprintable():
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
    """OpenRouter writes prices as text, in USD for one token; helexa as numbers, for a million."""
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
