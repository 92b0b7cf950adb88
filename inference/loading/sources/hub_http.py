"""The HTTP client of huggingface_hub, which asks the proxy that the environment names for a URL."""

from __future__ import annotations

import httpx2
from huggingface_hub import is_offline_mode
from huggingface_hub.errors import OfflineModeIsEnabled

from inference.proxies import UnsupportedProxyError, proxy_for


def open_client() -> httpx2.Client:
    """With the redirects and timeouts of huggingface_hub's own, which sets them by request."""
    return httpx2.Client(transport=ProxyingTransport(), follow_redirects=True, timeout=None)


class ProxyingTransport(httpx2.BaseTransport):
    """Chooses the proxy of each request: a hub redirects to other hosts. With HF_HUB_OFFLINE
    nothing is asked. For many threads."""

    def __init__(self) -> None:
        self._by_proxy: dict[str | None, httpx2.HTTPTransport] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if is_offline_mode():
            raise OfflineModeIsEnabled(f"{request.url}: HF_HUB_OFFLINE is set")
        try:
            proxy = proxy_for(str(request.url))
        except UnsupportedProxyError as error:
            raise httpx2.ProxyError(str(error), request=request) from error
        if proxy not in self._by_proxy:
            self._by_proxy.setdefault(proxy, httpx2.HTTPTransport(proxy=proxy))
        return self._by_proxy[proxy].handle_request(request)

    def close(self) -> None:
        for transport in self._by_proxy.values():
            transport.close()
