"""Everything an operator can set from the environment, parsed once and typed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from helexa_site.bootstrap.installing.environment import default_data_dir
from inference.settings import gateway, storage
from inference.settings.addresses import Network
from inference.settings.metrics_listen import METRICS_OFF, MetricsSetting
from inference.settings.table import check_settings

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY_FILE = "secret_key"
PRIVATE_REDIS_URL_FILE = "redis/url"
DEFAULT_HSTS_S = 30 * 24 * 3600
"""How long browsers keep to https once they have seen it."""
T = TypeVar("T")
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data_dir: Path
    # Secrets appear in no log: no repr holds them.
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    secret_key: str | None = field(repr=False)
    """The key that is set; ``None``: the data directory's own, see ``helexa_site.secret_key``."""
    secret_key_is_kept: bool = True
    """Whether there is one already, which other processes have as well: API keys are made for
    them."""
    debug: bool
    listen_host: str | None = None
    """What the gateway listens on. ``None``: an ASGI server of the operator's own, which cannot be
    asked and may be reachable from anywhere."""
    allowed_hosts: tuple[str, ...]
    """Names for this server beside those that follow from ``listen_host``: see
    ``helexa_site.web.hosts``."""
    trusted_proxies: tuple[Network, ...] = ()
    """The proxies that may name the client on whose behalf they ask."""
    csrf_trusted_origins: tuple[str, ...]
    allowed_origins: tuple[str, ...] = ()
    """Web pages of other machines that may use the API from a browser; ``*``: all."""
    max_body_bytes: int
    request_timeout_s: int
    """How long a request may wait for its first token, loads included."""
    head_timeout_s: int = gateway.HEAD_TIMEOUT_S.default
    """How long a client may take to send a request's head."""
    body_timeout_s: int = gateway.BODY_TIMEOUT_S.default
    """A body that is not complete brings 4 KiB in each period of this length."""
    idle_timeout_s: int = gateway.IDLE_TIMEOUT_S.default
    """How long a connection is kept on which nothing is asked."""
    max_connections_per_address: int = gateway.MAX_CONNECTIONS_PER_ADDRESS.default
    """The connections that one client may have; this host and trusted proxies may have more."""
    api_key: str | None = field(repr=False)
    """One shared bearer for clients that are not on loopback."""
    always_stream_usage: bool
    """Streams end with their usage whether or not the client asked for it."""
    ignores_unknown_fields: bool = False
    """Fields of requests that no dialect knows are left out, and named in a header of the answer,
    instead of being refused."""
    metrics: MetricsSetting = METRICS_OFF
    """The address at which Prometheus reads the metrics."""
    traces_url: str | None = field(default=None, repr=False)
    """Where an OpenTelemetry collector takes traces; ``None``: requests are not traced."""
    allow_anonymous: bool | None
    """Whether callers without a key are served; ``None``: on loopback, while no key is set."""
    serve_key: str | None = field(default=None, repr=False)
    """The key that ``serve`` sends to its own gateway; new at each start."""
    max_open_requests: int = gateway.MAX_OPEN_REQUESTS.default
    """How many requests this gateway has open at once; more are refused."""
    max_waiting_requests: int = gateway.MAX_WAITING_REQUESTS.default
    """How many requests may wait for models to be loaded."""
    max_stored_responses: int = gateway.MAX_STORED_RESPONSES.default
    """How many one account may keep."""
    max_stored_response_bytes: int = gateway.MAX_STORED_RESPONSE_BYTES.default
    """What those of one account may take together."""
    files_dir: Path | None = None
    """Where contents of files lie, and results of batches: a directory that all gateways share.
    ``None``: in the data directory."""
    max_stored_files: int = gateway.MAX_STORED_FILES.default
    """How many files one account may keep, results of batches too."""
    max_stored_file_bytes: int = gateway.MAX_STORED_FILE_BYTES.default
    """What those of one account may take together before it may add no more."""
    max_open_batches: int = gateway.MAX_OPEN_BATCHES.default
    """How many one account may have."""
    batch_discount_percent: int = gateway.BATCH_DISCOUNT_PERCENT.default
    """What a request of a batch costs less."""
    max_open_body_bytes: int = gateway.MAX_OPEN_BODY_BYTES.default
    """What the bodies of open requests may take together."""
    max_image_bytes: int = gateway.MAX_IMAGE_BYTES.default
    """The largest image that a request may bring."""
    max_image_pixels: int = gateway.MAX_IMAGE_PIXELS.default
    max_images: int = gateway.MAX_IMAGES.default
    """How many images one request may have, what it builds on included."""
    max_images_bytes: int = gateway.MAX_IMAGES_BYTES.default
    """How large these may be together."""
    image_hosts: tuple[str, ...] = ()
    """Where images are fetched from that clients give by address: ``images.example.org``,
    ``*.example.org``, ``10.0.0.5:8080``, or ``*`` for all that are public. None: such images are
    refused."""
    response_retention_days: int = storage.RESPONSE_RETENTION_DAYS.default
    """Stored responses are deleted after so long; 0 keeps them without a limit."""
    ledger_retention_days: int = storage.LEDGER_RETENTION_DAYS.default
    """Ledger entries are deleted after so long; 0 keeps them without a limit."""
    request_retention_days: int = storage.REQUEST_RETENTION_DAYS.default
    """Request records are deleted after so long; 0 keeps them without a limit."""
    max_request_records: int = storage.MAX_REQUEST_RECORDS.default
    """The oldest beyond so many are deleted; 0: no limit."""
    capture_retention_days: int = storage.CAPTURE_RETENTION_DAYS.default
    """Captured bodies are deleted after so long."""
    has_public_bench: bool = False
    """Anybody may read the bench's results, without a key or a log-in."""
    public_url: str | None = None
    """Scheme, host and port at which people reach this server."""
    has_secure_cookies: bool = False
    redirects_to_https: bool = False
    """What a trusted proxy was asked for by HTTP."""
    hsts_s: int = 0
    drain_s: int = gateway.DRAIN_SECONDS.default
    redis_stall_s: int = storage.REDIS_STALL_S.default
    """How long open requests wait for a Redis that does not answer."""


def read_config(environment: Mapping[str, str] = os.environ) -> Config:
    """Raises ``SettingError`` for any setting of any process that cannot be."""
    check_settings(environment)
    data_dir = (storage.DATA_DIR.read(environment) or default_data_dir()).resolve()
    files_dir = storage.FILES_DIR.read(environment)
    secret_key = gateway.SECRET_KEY.read(environment)
    public_url = gateway.PUBLIC_URL.read(environment)
    is_https = public_url is not None and public_url.startswith("https://")
    return Config(
        data_dir=data_dir,
        database_url=storage.DATABASE_URL.read(environment)
        or f"sqlite:///{data_dir / 'helexa.sqlite3'}",
        redis_url=storage.REDIS_URL.read(environment)
        or _private_redis_url(data_dir)
        or DEFAULT_REDIS_URL,
        secret_key=secret_key,
        secret_key_is_kept=secret_key is not None or (data_dir / SECRET_KEY_FILE).is_file(),
        files_dir=files_dir.resolve() if files_dir else None,
        debug=gateway.DEBUG.read(environment),
        listen_host=gateway.LISTEN_HOST.read(environment),
        allowed_hosts=gateway.ALLOWED_HOSTS.read(environment),
        trusted_proxies=gateway.TRUSTED_PROXIES.read(environment),
        csrf_trusted_origins=(
            *gateway.CSRF_TRUSTED_ORIGINS.read(environment),
            *((public_url,) if public_url else ()),
        ),
        public_url=public_url,
        has_secure_cookies=_or(gateway.SECURE_COOKIES.read(environment), is_https),
        redirects_to_https=_or(gateway.HTTPS_REDIRECT.read(environment), is_https),
        hsts_s=_or(gateway.HSTS_S.read(environment), DEFAULT_HSTS_S if is_https else 0),
        allowed_origins=gateway.ALLOWED_ORIGINS.read(environment),
        max_body_bytes=gateway.MAX_BODY_BYTES.read(environment),
        request_timeout_s=gateway.REQUEST_TIMEOUT_S.read(environment),
        head_timeout_s=gateway.HEAD_TIMEOUT_S.read(environment),
        body_timeout_s=gateway.BODY_TIMEOUT_S.read(environment),
        idle_timeout_s=gateway.IDLE_TIMEOUT_S.read(environment),
        max_connections_per_address=gateway.MAX_CONNECTIONS_PER_ADDRESS.read(environment),
        api_key=gateway.API_KEY.read(environment),
        always_stream_usage=gateway.ALWAYS_STREAM_USAGE.read(environment),
        ignores_unknown_fields=gateway.UNKNOWN_FIELDS.read(environment) == "ignore",
        metrics=gateway.METRICS_LISTEN.read(environment),
        traces_url=_traces_url(environment),
        allow_anonymous=gateway.ALLOW_ANONYMOUS.read(environment),
        serve_key=gateway.SERVE_KEY.read(environment),
        max_open_requests=gateway.MAX_OPEN_REQUESTS.read(environment),
        max_waiting_requests=gateway.MAX_WAITING_REQUESTS.read(environment),
        max_stored_responses=gateway.MAX_STORED_RESPONSES.read(environment),
        max_stored_response_bytes=gateway.MAX_STORED_RESPONSE_BYTES.read(environment),
        max_stored_files=gateway.MAX_STORED_FILES.read(environment),
        max_stored_file_bytes=gateway.MAX_STORED_FILE_BYTES.read(environment),
        max_open_batches=gateway.MAX_OPEN_BATCHES.read(environment),
        batch_discount_percent=gateway.BATCH_DISCOUNT_PERCENT.read(environment),
        max_open_body_bytes=gateway.MAX_OPEN_BODY_BYTES.read(environment),
        max_image_bytes=gateway.MAX_IMAGE_BYTES.read(environment),
        max_image_pixels=gateway.MAX_IMAGE_PIXELS.read(environment),
        max_images=gateway.MAX_IMAGES.read(environment),
        max_images_bytes=gateway.MAX_IMAGES_BYTES.read(environment),
        image_hosts=gateway.IMAGE_HOSTS.read(environment),
        response_retention_days=storage.RESPONSE_RETENTION_DAYS.read(environment),
        ledger_retention_days=storage.LEDGER_RETENTION_DAYS.read(environment),
        request_retention_days=storage.REQUEST_RETENTION_DAYS.read(environment),
        max_request_records=storage.MAX_REQUEST_RECORDS.read(environment),
        capture_retention_days=storage.CAPTURE_RETENTION_DAYS.read(environment),
        has_public_bench=gateway.BENCH_PUBLIC.read(environment),
        drain_s=gateway.DRAIN_SECONDS.read(environment),
        redis_stall_s=storage.REDIS_STALL_S.read(environment),
    )


def _traces_url(environment: Mapping[str, str]) -> str | None:
    """The address for traces itself goes before the one below which OTLP has them."""
    endpoint = gateway.OTLP_ENDPOINT.read(environment)
    below = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
    return gateway.OTLP_TRACES_ENDPOINT.read(environment) or below


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _private_redis_url(data_dir: Path) -> str | None:
    """The private Redis of the ``serve`` that runs on the data directory, for commands in another
    terminal."""
    try:
        return (data_dir / PRIVATE_REDIS_URL_FILE).read_text() or None
    except OSError:
        return None
