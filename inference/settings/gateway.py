"""Settings of gateways: access, limits and timeouts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inference.settings.setting import (
    FLAG,
    GIB,
    MAX_BYTES,
    MAX_COUNT,
    MAX_PORT,
    MAX_WAIT_S,
    MIB,
    NETWORKS,
    ORIGIN,
    WEB_ORIGIN,
    Form,
    Setting,
    choice,
    text,
    url,
    whole,
    word_list,
)

DEFAULT_PORT = 31314
METRICS_OFF_WORDS = frozenset({"", "off", "0", "no", "false", "none"})
ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]/]+))?(?::(?P<port>\d+))?")
BROWSER_ORIGIN = re.compile(r"(?i)[a-z][a-z0-9+.-]*://[^/\s?#]+")
"""Scheme, host and port, as browsers send them: no path and no final slash."""
IMAGE_HOST = re.compile(r"(\*\.)?([a-z0-9_.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
"""A name or an address, with a port where it is not the usual one."""
HOST_NAME = re.compile(r"(?i)\.?[a-z0-9_-]([a-z0-9_.-]*[a-z0-9_-])?\.?|\[[0-9a-f:.]+\]")
"""A name or an address without a port; a leading dot stands for all names under it."""


@dataclass(frozen=True, slots=True)
class MetricsListen:
    """Without a ``host``: the gateway's."""

    host: str = ""
    port: int = DEFAULT_PORT
    is_on: bool = True

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def at(self, gateway_host: str) -> MetricsListen | None:
        return MetricsListen(self.host or gateway_host, self.port) if self.is_on else None


METRICS_OFF = MetricsListen(is_on=False)


def _metrics_address(word: str) -> MetricsListen:
    """
    9100, :9100       the gateway's host, port 9100
    10.0.0.5          port 31314 there
    10.0.0.5:9100, [::1]:9100
    off, (empty)      nowhere
    """
    word = word.strip()
    if word.lower() in METRICS_OFF_WORDS:
        return METRICS_OFF
    if word.isdigit():
        word = f":{word}"
    found = ADDRESS.fullmatch(word)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 1 <= port <= MAX_PORT:
        raise ValueError(f"{word!r} is not like 127.0.0.1:{DEFAULT_PORT}, :9100 or off")
    return MetricsListen((found["host"] or "").strip("[]"), port)


METRICS_ADDRESS = Form("HOST:PORT, HOST, :PORT or off", _metrics_address)
ORIGINS = word_list(
    BROWSER_ORIGIN, "a list of origins like https://chat.example.org, or *", may_be_any=True
)
HOST_NAMES = word_list(
    HOST_NAME,
    "a list of host names without scheme, port and path, like chat.example.org, or *",
    may_be_any=True,
)
WEB_ORIGINS = word_list(
    ORIGIN, "a list of origins with their scheme, like https://chat.example.org"
)
IMAGE_HOST_LIST = word_list(
    IMAGE_HOST,
    "a list of hosts like images.example.org or 10.0.0.5:80, or *",
    may_be_any=True,
    lowers=True,
)
LONG_SECRET = text("a text of at least 16 characters; use 50 random ones", min_characters=16)
COLLECTOR = url("http", "https", rule="an address like http://collector:4318")
TRACES = url("http", "https", rule="an address like http://collector:4318/v1/traces")
WAIT = whole(1, MAX_WAIT_S, "seconds")
BYTES = whole(0, MAX_BYTES, "bytes")
BODY_BYTES = whole(1024, MAX_BYTES, "bytes")

API_KEY: Setting[str | None] = Setting("HELEXA_API_KEY", text(), is_secret=True)
ALLOW_ANONYMOUS: Setting[bool | None] = Setting("HELEXA_ALLOW_ANONYMOUS", FLAG)
ALLOWED_ORIGINS = Setting("HELEXA_ALLOWED_ORIGINS", ORIGINS, ())
ALLOWED_HOSTS = Setting("HELEXA_ALLOWED_HOSTS", HOST_NAMES, ())
CSRF_TRUSTED_ORIGINS = Setting("HELEXA_CSRF_TRUSTED_ORIGINS", WEB_ORIGINS, ())
TRUSTED_PROXIES = Setting("HELEXA_TRUSTED_PROXIES", NETWORKS, ())
PUBLIC_URL: Setting[str | None] = Setting("HELEXA_PUBLIC_URL", WEB_ORIGIN)
SECURE_COOKIES: Setting[bool | None] = Setting("HELEXA_SECURE_COOKIES", FLAG)
HTTPS_REDIRECT: Setting[bool | None] = Setting("HELEXA_HTTPS_REDIRECT", FLAG)
HSTS_S: Setting[int | None] = Setting("HELEXA_HSTS_S", whole(0, 2 * 365 * 86_400, "seconds"))
LISTEN_HOST: Setting[str | None] = Setting("HELEXA_LISTEN_HOST", text("a host name or an address"))
SECRET_KEY: Setting[str | None] = Setting("HELEXA_SECRET_KEY", LONG_SECRET, is_secret=True)
DEBUG = Setting("HELEXA_DEBUG", FLAG, False)
MAX_BODY_BYTES = Setting("HELEXA_MAX_BODY_BYTES", BODY_BYTES, 32 * MIB)
MAX_OPEN_REQUESTS = Setting("HELEXA_MAX_OPEN_REQUESTS", whole(1, MAX_COUNT, "requests"), 4096)
MAX_OPEN_BODY_BYTES = Setting("HELEXA_MAX_OPEN_BODY_BYTES", BODY_BYTES, 256 * MIB)
MAX_WAITING_REQUESTS = Setting("HELEXA_MAX_WAITING_REQUESTS", whole(0, MAX_COUNT, "requests"), 2000)
REQUEST_TIMEOUT_S = Setting("HELEXA_REQUEST_TIMEOUT_S", WAIT, 600)
HEAD_TIMEOUT_S = Setting("HELEXA_HEAD_TIMEOUT_S", WAIT, 10)
BODY_TIMEOUT_S = Setting("HELEXA_BODY_TIMEOUT_S", WAIT, 20)
IDLE_TIMEOUT_S = Setting("HELEXA_IDLE_TIMEOUT_S", WAIT, 75)
MAX_CONNECTIONS_PER_ADDRESS = Setting(
    "HELEXA_MAX_CONNECTIONS_PER_ADDRESS", whole(1, MAX_COUNT, "connections"), 512
)
MAX_IMAGE_BYTES = Setting("HELEXA_MAX_IMAGE_BYTES", whole(1, MAX_BYTES, "bytes"), 20 * MIB)
MAX_IMAGE_PIXELS = Setting("HELEXA_MAX_IMAGE_PIXELS", whole(1, MAX_COUNT, "pixels"), 50_000_000)
MAX_IMAGES = Setting("HELEXA_MAX_IMAGES", whole(0, MAX_COUNT, "images"), 100)
MAX_IMAGES_BYTES = Setting("HELEXA_MAX_IMAGES_BYTES", BYTES, 64 * MIB)
IMAGE_HOSTS = Setting("HELEXA_IMAGE_HOSTS", IMAGE_HOST_LIST, ())
MAX_STORED_RESPONSES = Setting(
    "HELEXA_MAX_STORED_RESPONSES", whole(0, MAX_COUNT, "responses"), 10_000
)
MAX_STORED_RESPONSE_BYTES = Setting("HELEXA_MAX_STORED_RESPONSE_BYTES", BYTES, GIB)
MAX_STORED_FILES = Setting("HELEXA_MAX_STORED_FILES", whole(0, MAX_COUNT, "files"), 1000)
MAX_STORED_FILE_BYTES = Setting("HELEXA_MAX_STORED_FILE_BYTES", BYTES, 4 * GIB)
MAX_OPEN_BATCHES = Setting("HELEXA_MAX_OPEN_BATCHES", whole(0, MAX_COUNT, "batches"), 100)
BATCH_DISCOUNT_PERCENT = Setting("HELEXA_BATCH_DISCOUNT_PERCENT", whole(0, 100, "percent"), 0)
UNKNOWN_FIELDS = Setting("HELEXA_UNKNOWN_FIELDS", choice("refuse", "ignore"), "refuse")
ALWAYS_STREAM_USAGE = Setting("HELEXA_ALWAYS_STREAM_USAGE", FLAG, False)
BENCH_PUBLIC = Setting("HELEXA_BENCH_PUBLIC", FLAG, False)
DRAIN_SECONDS = Setting("HELEXA_DRAIN_SECONDS", whole(0, 86_400, "seconds"), 300)
OTLP_ENDPOINT: Setting[str | None] = Setting("OTEL_EXPORTER_OTLP_ENDPOINT", COLLECTOR)
OTLP_TRACES_ENDPOINT: Setting[str | None] = Setting("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", TRACES)
OTLP_PROTOCOL = Setting("OTEL_EXPORTER_OTLP_PROTOCOL", choice("http/protobuf"), "http/protobuf")
OTLP_HEADERS: Setting[str | None] = Setting(
    "OTEL_EXPORTER_OTLP_HEADERS", text("a list like name=value,name=value"), is_secret=True
)
METRICS_LISTEN = Setting(
    "HELEXA_METRICS_LISTEN", METRICS_ADDRESS, MetricsListen(), reads_blank=True
)
SERVE_KEY: Setting[str | None] = Setting(
    "HELEXA_SERVE_KEY", text(), is_secret=True, is_internal=True
)
"""``serve`` makes a new one at each start."""
