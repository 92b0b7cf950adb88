"""Everything an operator can set from the environment, parsed once and typed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from helexa_site.bootstrap.environment import default_data_dir
from helexa_site.metrics_listen import (
    METRICS_OFF,
    MetricsListenError,
    MetricsSetting,
    parse_metrics_listen,
)
from helexa_site.variables import ConfigError, Network, Variables
from inference.protocol.stalls import DEFAULT_STALL_LIMIT_S, STALL_LIMIT_VARIABLE

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY_FILE = "secret_key"
PRIVATE_REDIS_URL_FILE = "redis/url"
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data_dir: Path
    # What is secret is in nobody's log: no repr holds it.
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    secret_key: str | None = field(repr=False)
    """As set; else it is the data directory's: see ``helexa_site.secret_key``."""
    secret_key_is_kept: bool = True
    """Whether there is one already, which other processes have as well: API keys are made for
    them."""
    debug: bool
    listen_host: str | None = None
    """What the gateway listens on. ``None``: an ASGI server of the operator's own, which cannot be
    asked and may be reachable from anywhere."""
    allowed_hosts: tuple[str, ...]
    """Names for this server beside those that follow from ``listen_host``: see
    ``helexa_site.hosts``."""
    trusted_proxies: tuple[Network, ...] = ()
    """Only these may say on whose behalf they ask."""
    csrf_trusted_origins: tuple[str, ...]
    allowed_origins: tuple[str, ...] = ()
    """Web pages of other machines that may use the API from a browser; ``*``: all."""
    max_body_bytes: int
    request_timeout_s: int
    """How long a request may wait for its first token, loads included."""
    api_key: str | None = field(repr=False)
    """One shared bearer for clients that are not on loopback."""
    always_stream_usage: bool
    """Streams end with their usage whether or not the client asked for it."""
    ignores_unknown_fields: bool = False
    """Fields of requests that no dialect knows are left out, and named in a header of the answer,
    instead of being refused."""
    metrics: MetricsSetting = METRICS_OFF
    """The address at which Prometheus finds what is counted."""
    allow_anonymous: bool | None
    """Whether callers without a key are served; ``None``: on loopback, while no key is set."""
    serve_key: str | None = field(default=None, repr=False)
    """What ``serve`` asks its own gateway with; made anew at each start."""
    max_open_requests: int = 4096
    """How many requests this gateway has open at once; more are refused."""
    max_waiting_requests: int = 2000
    """How many requests may wait for models to be loaded."""
    max_stored_responses: int = 10_000
    """How many one account may keep."""
    max_stored_response_bytes: int = 1024 * 1024 * 1024
    """What those of one account may take together."""
    files_dir: Path | None = None
    """Where contents of files lie, and results of batches: a directory that all gateways share.
    ``None``: in the data directory."""
    max_stored_files: int = 1000
    """How many files one account may keep, results of batches too."""
    max_stored_file_bytes: int = 4 * 1024 * 1024 * 1024
    """What those of one account may take together before it may add no more."""
    max_open_batches: int = 100
    """How many one account may have."""
    batch_discount_percent: int = 0
    """What a request of a batch costs less."""
    max_open_body_bytes: int = 256 * 1024 * 1024
    """What the bodies of open requests may take together."""
    max_image_bytes: int = 20 * 1024 * 1024
    """The largest image that a request may bring."""
    max_image_pixels: int = 50_000_000
    max_images: int = 100
    """How many images one request may have, what it builds on included."""
    max_images_bytes: int = 64 * 1024 * 1024
    """How large these may be together."""
    image_hosts: tuple[str, ...] = ()
    """Where images are fetched from that clients give by address: ``images.example.org``,
    ``*.example.org``, ``10.0.0.5:8080``, or ``*`` for all that are public. None: such images are
    refused."""
    response_retention_days: int = 30
    """Stored responses are forgotten after so long; 0 keeps them for ever."""
    ledger_retention_days: int = 400
    """Ledger entries are forgotten after so long; 0 keeps them for ever."""
    has_public_bench: bool = False
    """Anybody may read the bench's results, without a key or a log-in."""
    redis_stall_s: int = DEFAULT_STALL_LIMIT_S
    """How long open requests wait for a Redis that does not answer."""


def read_config(environment: Mapping[str, str] = os.environ) -> Config:
    """Raises ``ConfigError``."""
    return _config(Variables(environment))


@cache
def settings_of_config() -> frozenset[str]:
    """The names of all variables that ``read_config`` reads."""
    told = Variables({})
    _config(told)
    return frozenset(told.asked)


def _config(told: Variables) -> Config:
    data_dir = Path(told.text("HELEXA_DATA_DIR") or default_data_dir()).resolve()
    return Config(
        data_dir=data_dir,
        database_url=told.text("DATABASE_URL") or f"sqlite:///{data_dir / 'helexa.sqlite3'}",
        redis_url=told.text("REDIS_URL") or _private_redis_url(data_dir) or DEFAULT_REDIS_URL,
        secret_key=told.text("HELEXA_SECRET_KEY") or None,
        secret_key_is_kept=(
            bool(told.text("HELEXA_SECRET_KEY")) or (data_dir / SECRET_KEY_FILE).is_file()
        ),
        debug=told.flag("HELEXA_DEBUG"),
        listen_host=told.text("HELEXA_LISTEN_HOST") or None,
        allowed_hosts=told.words("HELEXA_ALLOWED_HOSTS"),
        trusted_proxies=told.networks("HELEXA_TRUSTED_PROXIES"),
        csrf_trusted_origins=told.words("HELEXA_CSRF_TRUSTED_ORIGINS"),
        allowed_origins=told.origins("HELEXA_ALLOWED_ORIGINS"),
        max_body_bytes=told.integer("HELEXA_MAX_BODY_BYTES", 32 * 1024 * 1024, minimum=1024),
        request_timeout_s=told.integer("HELEXA_REQUEST_TIMEOUT_S", 600, minimum=1),
        api_key=told.text("HELEXA_API_KEY") or None,
        always_stream_usage=told.flag("HELEXA_ALWAYS_STREAM_USAGE"),
        ignores_unknown_fields=told.word("HELEXA_UNKNOWN_FIELDS", ("refuse", "ignore")) == "ignore",
        metrics=_metrics(told, "HELEXA_METRICS_LISTEN"),
        allow_anonymous=told.flag_or_none("HELEXA_ALLOW_ANONYMOUS"),
        serve_key=told.text("HELEXA_SERVE_KEY") or None,
        max_open_requests=told.integer("HELEXA_MAX_OPEN_REQUESTS", 4096, minimum=1),
        max_waiting_requests=told.integer("HELEXA_MAX_WAITING_REQUESTS", 2000, minimum=0),
        max_stored_responses=told.integer("HELEXA_MAX_STORED_RESPONSES", 10_000, minimum=0),
        max_stored_response_bytes=told.integer(
            "HELEXA_MAX_STORED_RESPONSE_BYTES", 1024 * 1024 * 1024, minimum=0
        ),
        files_dir=_directory(told.text("HELEXA_FILES_DIR")),
        max_stored_files=told.integer("HELEXA_MAX_STORED_FILES", 1000, minimum=0),
        max_stored_file_bytes=told.integer(
            "HELEXA_MAX_STORED_FILE_BYTES", 4 * 1024 * 1024 * 1024, minimum=0
        ),
        max_open_batches=told.integer("HELEXA_MAX_OPEN_BATCHES", 100, minimum=0),
        batch_discount_percent=told.percent("HELEXA_BATCH_DISCOUNT_PERCENT", 0),
        max_open_body_bytes=told.integer(
            "HELEXA_MAX_OPEN_BODY_BYTES", 256 * 1024 * 1024, minimum=1024
        ),
        max_image_bytes=told.integer("HELEXA_MAX_IMAGE_BYTES", 20 * 1024 * 1024, minimum=1),
        max_image_pixels=told.integer("HELEXA_MAX_IMAGE_PIXELS", 50_000_000, minimum=1),
        max_images=told.integer("HELEXA_MAX_IMAGES", 100, minimum=0),
        max_images_bytes=told.integer("HELEXA_MAX_IMAGES_BYTES", 64 * 1024 * 1024, minimum=0),
        image_hosts=told.image_hosts("HELEXA_IMAGE_HOSTS"),
        response_retention_days=told.integer("HELEXA_RESPONSE_RETENTION_DAYS", 30, minimum=0),
        ledger_retention_days=told.integer("HELEXA_LEDGER_RETENTION_DAYS", 400, minimum=0),
        has_public_bench=told.flag("HELEXA_BENCH_PUBLIC"),
        redis_stall_s=told.integer(STALL_LIMIT_VARIABLE, DEFAULT_STALL_LIMIT_S, minimum=1),
    )


def _directory(word: str) -> Path | None:
    return Path(word).resolve() if word else None


def _private_redis_url(data_dir: Path) -> str | None:
    """The private Redis of the ``serve`` that runs on the data directory, for commands in another
    terminal."""
    try:
        return (data_dir / PRIVATE_REDIS_URL_FILE).read_text() or None
    except OSError:
        return None


def _metrics(told: Variables, name: str) -> MetricsSetting:
    try:
        return parse_metrics_listen(told.text_or_none(name))
    except MetricsListenError as error:
        raise ConfigError(f"{name}: {error}") from error
