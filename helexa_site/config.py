"""The operator's settings, parsed once and typed, and Django's of the database. Standard library
only at import: settings are checked before anything is installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from helexa_site.program import default_data_dir
from inference.settings import gateway, storage
from inference.settings.gateway import MetricsListen
from inference.settings.setting import Network, Setting, SettingError
from inference.settings.table import check_settings

SECRET_KEY_FILE = "secret_key"
FILES_FOLDER = "files"
PRIVATE_REDIS_URL_FILE = "redis/url"
DEFAULT_HSTS_S = 30 * 24 * 3600
T = TypeVar("T")
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A field with a setting's name has its value and meaning."""

    data_dir: Path
    # Secrets appear in no log: no repr holds them.
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    secret_key: str | None = field(repr=False)
    """The configured key; ``None``: the data directory's own."""
    secret_key_is_kept: bool
    """Whether a key exists that other processes have as well, for making API keys."""
    debug: bool
    listen_host: str | None
    """``None``: the operator's own ASGI server, whose address is unknown and may be public."""
    allowed_hosts: tuple[str, ...]
    """Beside the names derived from ``listen_host``: see ``helexa_site.middleware``."""
    trusted_proxies: tuple[Network, ...]
    csrf_trusted_origins: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    max_body_bytes: int
    request_timeout_s: int
    head_timeout_s: int
    body_timeout_s: int
    idle_timeout_s: int
    max_connections_per_address: int
    api_key: str | None = field(repr=False)
    always_stream_usage: bool
    ignores_unknown_fields: bool
    metrics: MetricsListen
    traces_url: str | None = field(repr=False)
    allow_anonymous: bool | None
    """``None``: on loopback, while no key is set."""
    serve_key: str | None = field(repr=False)
    max_open_requests: int
    max_waiting_requests: int
    max_stored_responses: int
    max_stored_response_bytes: int
    files_dir: Path | None
    max_stored_files: int
    max_stored_file_bytes: int
    max_open_batches: int
    batch_discount_percent: int
    max_open_body_bytes: int
    max_image_bytes: int
    max_image_pixels: int
    max_images: int
    max_images_bytes: int
    image_hosts: tuple[str, ...]
    response_retention_days: int
    ledger_retention_days: int
    request_retention_days: int
    max_request_records: int
    capture_retention_days: int
    has_public_bench: bool
    public_url: str | None
    has_secure_cookies: bool
    redirects_to_https: bool
    hsts_s: int
    drain_s: int
    redis_stall_s: int

    @property
    def stored_files_dir(self) -> Path:
        return self.files_dir or self.data_dir / FILES_FOLDER


SETTINGS: dict[str, Setting[Any]] = {
    name.lower(): setting
    for name, setting in (vars(storage) | vars(gateway)).items()
    if isinstance(setting, Setting)
}


def read_config(environment: Mapping[str, str] = os.environ) -> Config:
    """Raises ``SettingError`` for any invalid setting of any process."""
    check_settings(environment)
    named = [one.name for one in fields(Config) if one.name in SETTINGS]
    values: dict[str, Any] = {name: SETTINGS[name].read(environment) for name in named}
    data_dir = (storage.DATA_DIR.read(environment) or default_data_dir()).resolve()
    files_dir = storage.FILES_DIR.read(environment)
    public_url = gateway.PUBLIC_URL.read(environment)
    is_https = public_url is not None and public_url.startswith("https://")
    values |= {
        "data_dir": data_dir,
        "database_url": values["database_url"] or f"sqlite:///{data_dir / 'helexa.sqlite3'}",
        "redis_url": values["redis_url"] or private_redis_url(data_dir) or DEFAULT_REDIS_URL,
        "secret_key_is_kept": values["secret_key"] is not None
        or (data_dir / SECRET_KEY_FILE).is_file(),
        "files_dir": files_dir.resolve() if files_dir else None,
        "csrf_trusted_origins": (
            *gateway.CSRF_TRUSTED_ORIGINS.read(environment),
            *((public_url,) if public_url else ()),
        ),
        "has_secure_cookies": _or(gateway.SECURE_COOKIES.read(environment), is_https),
        "redirects_to_https": _or(gateway.HTTPS_REDIRECT.read(environment), is_https),
        "hsts_s": _or(gateway.HSTS_S.read(environment), DEFAULT_HSTS_S if is_https else 0),
        "ignores_unknown_fields": gateway.UNKNOWN_FIELDS.read(environment) == "ignore",
        "metrics": gateway.METRICS_LISTEN.read(environment),
        "traces_url": _traces_url(environment),
        "has_public_bench": gateway.BENCH_PUBLIC.read(environment),
        "drain_s": gateway.DRAIN_SECONDS.read(environment),
    }
    return Config(**values)


def _traces_url(environment: Mapping[str, str]) -> str | None:
    endpoint = gateway.OTLP_ENDPOINT.read(environment)
    below = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
    return gateway.OTLP_TRACES_ENDPOINT.read(environment) or below


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def private_redis_url(data_dir: Path) -> str | None:
    """The Redis of the running ``serve``, for commands in another terminal."""
    try:
        return (data_dir / PRIVATE_REDIS_URL_FILE).read_text() or None
    except OSError:
        return None


CONNECTION_MAX_AGE_S = 600
"""A thread of the gateway's or the control's keeps its connection from query to query: connecting
to PostgreSQL costs several times a query. A lost one is detected before the next query."""
POSTGRESQL_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""libpq's: a server behind a broken network times out after ten seconds, and not after 15 minutes,
for which revoked keys would work. Values in the URL take precedence."""
SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


WANTED = "DATABASE_URL is not like postgres://user:password@host/helexa or sqlite:////path/to/file"


def database_settings(url: str) -> dict[str, Any]:
    """Raises ``SettingError`` without the URL, which may contain a password."""
    import dj_database_url  # with the other requirements

    try:
        parsed: dict[str, Any] = {
            **dj_database_url.parse(url, conn_max_age=CONNECTION_MAX_AGE_S, conn_health_checks=True)
        }
    except ValueError:
        raise SettingError(WANTED) from None
    match parsed["ENGINE"]:
        case "django.db.backends.sqlite3":
            parsed["OPTIONS"] = SQLITE_OPTIONS
        case "django.db.backends.postgresql":
            parsed["OPTIONS"] = POSTGRESQL_OPTIONS | parsed.get("OPTIONS", {})
        case _:
            raise SettingError(WANTED)
    return parsed


def open_only_what_is_there() -> None:
    """SQLite would create a missing file; a command without a database reports it instead."""
    from django.db import connections  # which reads the settings, and they are made with this

    settings = connections.settings["default"]
    path = str(settings["NAME"])
    if "sqlite3" not in settings["ENGINE"] or path.startswith((":", "file:")):
        return
    if not Path(path).exists():
        connections["default"].settings_dict["NAME"] = f"file:{quote(path)}?mode=rw"
