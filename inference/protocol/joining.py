"""An invited host's join line, ``hx1.`` and base64 of JSON, and Redis' URL in Celery's form.

The line holds a password, so a file with it must be readable by its owner alone. Standard library
only: it is read before anything is installed.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

PREFIX = "hx1."


class JoinLineError(ValueError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    neuron: str
    redis_url: str = field(repr=False)
    certificate: str = ""
    """PEM of Redis' self-signed certificate; empty: the system's certificates apply."""


def encode_joining(joining: Joining) -> str:
    data = json.dumps(asdict(joining), separators=(",", ":")).encode()
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode_joining(line: str) -> Joining:
    """Raises ``JoinLineError``."""
    word = "".join(line.split())
    if not word.startswith(PREFIX):
        raise JoinLineError(f"the text after --join is to begin with {PREFIX}")
    data = word.removeprefix(PREFIX)
    try:
        values = json.loads(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)))
        joining = Joining(**values)
    except (binascii.Error, ValueError, TypeError) as error:
        raise JoinLineError("the text after --join is not whole; paste all of it") from error
    if not all(isinstance(value, str) for value in values.values()):
        raise JoinLineError("the text after --join is not whole; paste all of it")
    return joining


def celery_broker_url(redis_url: str) -> str:
    """``unix://…?db=0`` (redis-py) becomes ``redis+socket://…?virtual_host=0`` (kombu), and
    ``rediss://…?ssl_…`` loses its options, which kombu takes separately."""
    if redis_url.startswith("rediss://"):
        return redis_url.partition("?")[0]
    if not redis_url.startswith("unix://"):
        return redis_url
    return "redis+socket://" + redis_url.removeprefix("unix://").replace("db=", "virtual_host=")


def celery_ssl_options(redis_url: str) -> dict[str, Any] | None:
    """In kombu's form; ``None`` without TLS."""
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
