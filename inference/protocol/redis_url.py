"""One Redis URL for everybody: redis-py and Celery spell a unix socket and TLS differently."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import parse_qsl, urlsplit


def celery_broker_url(redis_url: str) -> str:
    """``unix://…`` (redis-py) becomes ``redis+socket://…`` (kombu), and ``rediss://…?ssl_…`` loses
    its options, which kombu takes apart; others are the same in both.

    The database number is ``?db=0`` in the first and ``?virtual_host=0`` in the second.
    """
    if redis_url.startswith("rediss://"):
        return redis_url.partition("?")[0]
    if not redis_url.startswith("unix://"):
        return redis_url
    return "redis+socket://" + redis_url.removeprefix("unix://").replace("db=", "virtual_host=")


def celery_ssl_options(redis_url: str) -> dict[str, Any] | None:
    """What redis-py reads from the URL of a Redis with TLS, as kombu wants it; ``None`` for one
    without."""
    if not redis_url.startswith("rediss://"):
        return None
    options = dict(parse_qsl(urlsplit(redis_url).query))
    found: dict[str, Any] = {
        "ssl_cert_reqs": ssl.CERT_NONE
        if options.get("ssl_cert_reqs") == "none"
        else ssl.CERT_REQUIRED
    }
    if path := options.get("ssl_ca_certs"):
        found["ssl_ca_certs"] = path
    if word := options.get("ssl_check_hostname"):
        found["ssl_check_hostname"] = word.lower() == "true"
    return found
