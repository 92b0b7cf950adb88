"""The endpoints in use: requests to them, their models, and limits learnt from their answers.

The openai package is not used: with it 21 MB are installed instead of 10, and the import takes 0.3
s longer. Streams tolerate some servers' malformed events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from urllib.parse import quote

import httpx2

from helexa_acp.config import USUAL_MODEL, Config, Endpoint, Selector, WireApi
from helexa_acp.errors import EndpointError
from helexa_acp.transports import event_data, open_http
from helexa_acp.wire import JsonObject, ModelRequest, WireEvent, chat, messages, responses

WINDOW_KEYS = ("context_length", "max_model_len", "context_window", "max_input_tokens")
"""OpenRouter, vLLM and others."""
LIST_TIMEOUT_S = 5.0
COUNT_TIMEOUT_S = 30.0
DIALECTS: dict[WireApi, ModuleType] = {
    "openai-chat": chat,
    "openai-responses": responses,
    "anthropic-messages": messages,
}
"""Each has its ``PATH``, ``headers``, ``request_body`` and ``Answer``."""
MAX_RETRIES = 2
RETRY_DELAY_S = 0.5
MAX_RETRY_DELAY_S = 60.0
RETRIED_STATUSES = frozenset({408, 409, 429, *range(500, 600)}) - {501}
END = "[DONE]"
SHOWN_CHARACTERS = 200
log = logging.getLogger(__name__)


async def _stream(
    http: httpx2.AsyncClient, endpoint: Endpoint, request: ModelRequest
) -> AsyncGenerator[WireEvent, None]:
    """The last event is Finished. Closing the generator ends the request at the endpoint."""
    dialect = DIALECTS[endpoint.wire_api]
    base_url = endpoint.base_url
    if dialect is messages:  # its own clients add the version where it is missing
        base_url = f"{base_url.removesuffix('/v1')}/v1"
    headers = {"x-include-thinking": "true", **dialect.headers(endpoint.api_key)}
    posting = http.build_request(
        "POST", base_url + dialect.PATH, json=dialect.request_body(request), headers=headers
    )
    answer = dialect.Answer()
    with _endpoint_errors():
        async with _answered(http, posting) as response:
            async for data in event_data(response):
                if data.startswith(END):
                    break
                for event in fed(answer, data):
                    yield event
        for event in answer.finish():
            yield event


def fed(answer: Any, data: str) -> list[WireEvent]:
    """A malformed event is skipped. Raises EndpointError where it reports an error."""
    if not data.strip():
        return []
    try:
        event = json.loads(data)
        if event.get("error"):
            raise _refusal(400, event)
        events: list[WireEvent] = answer.feed(JsonObject(event))
    except (AttributeError, TypeError, KeyError, ValueError, RecursionError) as error:
        log.warning("skipped a malformed event (%s): %s", error, data[:SHOWN_CHARACTERS])
        return []
    return events


@contextlib.asynccontextmanager
async def _answered(
    http: httpx2.AsyncClient, posting: httpx2.Request
) -> AsyncIterator[httpx2.Response]:
    for tries_left in range(MAX_RETRIES, -1, -1):
        delay_s = RETRY_DELAY_S * 2 ** (MAX_RETRIES - tries_left)
        try:
            response = await http.send(posting, stream=True, follow_redirects=True)
        except httpx2.TransportError:
            if not tries_left:
                raise
            await asyncio.sleep(delay_s)
            continue
        try:
            if response.is_success:
                yield response
                return
            is_final = response.headers.get("x-should-retry") == "false"
            if not tries_left or is_final or response.status_code not in RETRIED_STATUSES:
                raise _refusal(response.status_code, _body(await response.aread()))
        finally:
            await response.aclose()
        await asyncio.sleep(_retry_after_s(response, delay_s))


def _retry_after_s(response: httpx2.Response, otherwise_s: float) -> float:
    try:
        asked_s = float(response.headers.get("retry-after", ""))
    except ValueError:
        return otherwise_s
    return asked_s if 0 < asked_s <= MAX_RETRY_DELAY_S else otherwise_s


def _body(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@contextlib.contextmanager
def _endpoint_errors() -> Iterator[None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ProxyError, httpx2.InvalidURL) as error:
        raise EndpointError(f"it cannot be reached: {error}") from error
    except httpx2.TimeoutException as error:
        raise EndpointError("it did not answer in time") from error
    except (httpx2.HTTPError, ValueError) as error:
        raise EndpointError(f"its answer broke off: {error or type(error).__name__}") from error


def _refusal(status: int, body: Any) -> EndpointError:
    """An error in the stream has the status of the same refusal in a body, 400."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {"message": error}
    details = error.get("details")
    in_details = details.get("code") if isinstance(details, dict) else None
    code = error.get("code") or in_details or error.get("type")
    message = error.get("message")
    return EndpointError(
        message if isinstance(message, str) else f"HTTP status {status}",
        status=status,
        code=code if isinstance(code, str) else None,
    )


@dataclass(frozen=True, slots=True)
class Offer:
    """``None``: the endpoint does not report it."""

    model: str
    context_window: int | None = None
    takes_tools: bool | None = None


def read_offers(body: Any) -> tuple[Offer, ...]:
    """In the endpoint's order, without those that only make vectors."""
    listed = body.get("data") if isinstance(body, dict) else None
    offers = [_offer(entry) for entry in (listed if isinstance(listed, list) else ())]
    return tuple(offer for offer in offers if offer is not None)


def _offer(entry: Any) -> Offer | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
        return None
    limit = entry.get("limit")
    limit = limit if isinstance(limit, dict) else {}
    if limit.get("output") == 0:
        return None
    windows = [limit.get("context"), *(entry.get(key) for key in WINDOW_KEYS)]
    windows = [one for one in windows if isinstance(one, int) and one > 0 and one is not True]
    takes_tools = entry.get("tool_call")
    return Offer(
        entry["id"],
        windows[0] if windows else None,
        takes_tools if isinstance(takes_tools, bool) else None,
    )


@dataclass(slots=True)
class Learnt:
    """Kept while the process lives."""

    has_api_tools: bool = True
    thinks_when_asked: bool = True
    reads_images: bool = True
    context_window: int | None = None
    is_listed_again: bool = False
    tokens_per_estimated: float = 1.0
    """The endpoint's count of the latest prompt, over our estimate."""


@dataclass(slots=True)
class _Known:
    http: httpx2.AsyncClient | None = None
    offers: tuple[Offer, ...] = ()
    listing: asyncio.Task[None] | None = None
    counts: bool = True
    learnt: dict[str, Learnt] = field(default_factory=dict)


class Endpoints:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._known = {endpoint.name: _Known() for endpoint in config.endpoints}

    async def close(self) -> None:
        for known in self._known.values():
            if known.listing is not None:
                known.listing.cancel()
            if known.http is not None:
                with contextlib.suppress(Exception):
                    await known.http.aclose()

    def stream(self, endpoint: Endpoint, request: ModelRequest) -> AsyncGenerator[WireEvent, None]:
        """Raises ConfigError, and while it is read EndpointError."""
        return _stream(self._http(endpoint), endpoint, request)

    def _http(self, endpoint: Endpoint) -> httpx2.AsyncClient:
        known = self._known[endpoint.name]
        if known.http is None:
            known.http = open_http(endpoint.base_url)
        return known.http

    def begin_listing(self, endpoint: Endpoint) -> asyncio.Task[None]:
        known = self._known[endpoint.name]
        if known.listing is None or (known.listing.done() and not known.offers):
            known.listing = asyncio.create_task(self._list(endpoint))
        return known.listing

    async def listed(self, wait_s: float) -> bool:
        listings = [self.begin_listing(endpoint) for endpoint in self._config.endpoints]
        _, pending = await asyncio.wait(listings, timeout=wait_s)
        return not pending

    def offers(self, endpoint: Endpoint) -> tuple[Offer, ...]:
        return self._known[endpoint.name].offers

    async def default_selector(self) -> Selector:
        endpoint = self._config.default
        if endpoint.default_model is not None:
            return Selector(endpoint, endpoint.default_model)
        await asyncio.wait([self.begin_listing(endpoint)], timeout=LIST_TIMEOUT_S)
        models = [offer.model for offer in self.offers(endpoint)]
        usual = Selector(endpoint, USUAL_MODEL)
        if not models or await self.has_model(usual):
            return usual
        return Selector(endpoint, models[0])

    async def has_model(self, selector: Selector) -> bool | None:
        """A list may lack aliases. ``None``: the endpoint does not answer that."""
        if self._offer(selector) is not None:
            return True
        path = f"/models/{quote(selector.model)}"
        status, _ = await self._request("GET", selector.endpoint, path, LIST_TIMEOUT_S)
        return {200: True, 404: False}.get(status)

    async def _list(self, endpoint: Endpoint) -> None:
        status, body = await self._request("GET", endpoint, "/models", LIST_TIMEOUT_S)
        if status == 200:
            self._known[endpoint.name].offers = read_offers(body)

    def learnt(self, selector: Selector) -> Learnt:
        return self._known[selector.endpoint.name].learnt.setdefault(selector.model, Learnt())

    def _offer(self, selector: Selector) -> Offer | None:
        offers = self.offers(selector.endpoint)
        return next((offer for offer in offers if offer.model == selector.model), None)

    def context_window(self, selector: Selector) -> int | None:
        if selector.endpoint.context_window is not None:
            return selector.endpoint.context_window
        offer = self._offer(selector)
        listed = None if offer is None else offer.context_window
        windows = (listed, self.learnt(selector).context_window)
        return min((window for window in windows if window is not None), default=None)

    async def context_window_of_loaded(self, selector: Selector) -> int | None:
        """helexa reports a model's limit once it is loaded, so while it is unknown the endpoint is
        listed again, once."""
        learnt = self.learnt(selector)
        if self.context_window(selector) is None and not learnt.is_listed_again:
            learnt.is_listed_again = True
            await self._list(selector.endpoint)
        return self.context_window(selector)

    def has_api_tools(self, selector: Selector) -> bool:
        if selector.endpoint.tool_calling != "auto":
            return selector.endpoint.tool_calling == "native"
        offer = self._offer(selector)
        refuses = offer is not None and offer.takes_tools is False
        return self.learnt(selector).has_api_tools and not refuses

    async def count(self, endpoint: Endpoint, request: ModelRequest) -> int | None:
        """``None`` where the endpoint does not count. The request is in the messages dialect for
        every endpoint: helexa and Anthropic count in that one."""
        known = self._known[endpoint.name]
        if not known.counts:
            return None
        path, body = "/messages/count_tokens", messages.count_body(request)
        status, answer = await self._request("POST", endpoint, path, COUNT_TIMEOUT_S, json=body)
        if status in (404, 405, 501):
            known.counts = False
        counted = answer.get("input_tokens") if isinstance(answer, dict) else None
        return counted if isinstance(counted, int) and counted > 0 else None

    async def _request(
        self, method: str, endpoint: Endpoint, path: str, timeout_s: float, **more: Any
    ) -> tuple[int, Any]:
        """Callers can do without the answer; 0: there is none."""
        status, url = 0, f"{endpoint.base_url}{path}"
        headers = DIALECTS[endpoint.wire_api].headers(endpoint.api_key)
        try:
            response = await self._http(endpoint).request(
                method, url, headers=headers, timeout=timeout_s, **more
            )
            status = response.status_code
            return status, response.json()
        except Exception as error:  # noqa: BLE001 - see above
            log.info("endpoint %s did not answer %s: %r", endpoint.name, path, error)
            return status, None
