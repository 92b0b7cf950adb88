"""Settings of gateways: access, limits and timeouts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inference.settings import kinds
from inference.settings.setting import Reader, Setting

DEFAULT_PORT = 31314
MAX_PORT = 65535
METRICS_OFF_WORDS = frozenset({"", "off", "0", "no", "false", "none"})
ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]/]+))?(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class MetricsListen:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MetricsSetting:
    """The listen address of metrics. ``host`` ``None``: the gateway's."""

    is_on: bool = True
    host: str | None = None
    port: int = DEFAULT_PORT

    def at(self, gateway_host: str) -> MetricsListen | None:
        return MetricsListen(self.host or gateway_host, self.port) if self.is_on else None


METRICS_OFF = MetricsSetting(is_on=False)


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """The listen address of a gateway's metrics.

    9100, :9100       the gateway's host, port 9100
    10.0.0.5          port 31314 there
    10.0.0.5:9100, [::1]:9100
    off, (empty)      nowhere
    """

    rule: str = "HOST:PORT, HOST, :PORT or off"

    def parse(self, word: str) -> MetricsSetting:
        word = word.strip()
        if word.lower() in METRICS_OFF_WORDS:
            return METRICS_OFF
        if word.isdigit():
            word = f":{word}"
        found = ADDRESS.fullmatch(word)
        port = int(found["port"] or DEFAULT_PORT) if found else 0
        if found is None or not 1 <= port <= MAX_PORT:
            raise ValueError(f"{word!r} is not like 127.0.0.1:{DEFAULT_PORT}, :9100 or off")
        host = found["host"]
        return MetricsSetting(host=host.strip("[]") if host else None, port=port)


API_KEY: Setting[str | None] = Setting(
    name="HELEXA_API_KEY",
    kind=kinds.Text(),
    is_secret=True,
    readers=frozenset({Reader.GATEWAY, Reader.COMMANDS}),
    doc="one key for all clients, which the account `shared` pays for. Where it is set, a request "
    "without a key is refused. Commands with `--url` send it",
)
ALLOW_ANONYMOUS: Setting[bool | None] = Setting(
    name="HELEXA_ALLOW_ANONYMOUS",
    kind=kinds.Flag(),
    default_words="1 where `--host` is loopback and `HELEXA_API_KEY` is not set, else 0",
    doc="1: serve everybody who reaches the port; 0: require a key. Set it to 0 "
    "behind a proxy on the same host: all its clients come from loopback",
)
ALLOWED_ORIGINS: Setting[tuple[str, ...]] = Setting(
    name="HELEXA_ALLOWED_ORIGINS",
    kind=kinds.WordList(
        kinds.ORIGIN, "a list of origins like https://chat.example.org, or *", may_be_any=True
    ),
    default=(),
    doc="web pages of other machines that may use the API from a browser, as "
    "`https://chat.example.org`, or `*` for all. Pages of this machine and desktop programs "
    "always may",
)
ALLOWED_HOSTS: Setting[tuple[str, ...]] = Setting(
    name="HELEXA_ALLOWED_HOSTS",
    kind=kinds.WordList(
        kinds.HOST_NAME,
        "a list of host names without scheme, port and path, like chat.example.org, or *",
        may_be_any=True,
    ),
    default=(),
    doc="more names that requests may ask for (`chat.example.org`, `.example.org` with all names "
    "under it, `*`). Always allowed are `localhost`, names under it and loopback addresses; what "
    "the gateway listens on; the machine's name unless that is loopback; its addresses where it "
    "listens on all. Other names get 400, and the log names this setting",
)
CSRF_TRUSTED_ORIGINS: Setting[tuple[str, ...]] = Setting(
    name="HELEXA_CSRF_TRUSTED_ORIGINS",
    kind=kinds.WordList(
        kinds.WEB_ORIGIN, "a list of origins with their scheme, like https://chat.example.org"
    ),
    default=(),
    doc="origins whose forms the admin accepts behind a proxy, as `https://chat.example.org`",
)
TRUSTED_PROXIES: Setting[tuple[kinds.Network, ...]] = Setting(
    name="HELEXA_TRUSTED_PROXIES",
    kind=kinds.Networks(),
    default=(),
    doc="addresses and networks (`127.0.0.1, 10.1.0.0/16`) whose `X-Forwarded-For` and "
    "`X-Forwarded-Proto` are believed, for the limits of "
    "[logins](security.md#logins-to-the-admin) and for [HTTPS](security.md#https); their "
    "connections are not counted by address",
)
PUBLIC_URL: Setting[str | None] = Setting(
    name="HELEXA_PUBLIC_URL",
    kind=kinds.WebOrigin(),
    doc="where people reach this server through a proxy, as `https://chat.example.org`. Requests "
    "may ask for its host, and the admin accepts its forms. With https, cookies are secure, "
    "browsers are made to stay with HTTPS (HSTS), and HTTP requests are redirected "
    "([security](security.md#https))",
)
SECURE_COOKIES: Setting[bool | None] = Setting(
    name="HELEXA_SECURE_COOKIES",
    kind=kinds.Flag(),
    default_words="1 where `HELEXA_PUBLIC_URL` is https, else 0",
    doc="1: browsers send the cookies of a login over HTTPS alone",
)
HTTPS_REDIRECT: Setting[bool | None] = Setting(
    name="HELEXA_HTTPS_REDIRECT",
    kind=kinds.Flag(),
    default_words="1 where `HELEXA_PUBLIC_URL` is https, else 0",
    doc="1: a page that a trusted proxy was asked for by HTTP (`X-Forwarded-Proto`) is answered "
    "with a redirect to HTTPS",
)
HSTS_S: Setting[int | None] = Setting(
    name="HELEXA_HSTS_S",
    kind=kinds.WholeNumber(0, 2 * 365 * 86_400, "seconds"),
    default_words="2592000 where `HELEXA_PUBLIC_URL` is https, else 0",
    doc="how long a browser that was here by HTTPS refuses HTTP for this host "
    "(Strict-Transport-Security); 0 sends no such header",
)
LISTEN_HOST: Setting[str | None] = Setting(
    name="HELEXA_LISTEN_HOST",
    kind=kinds.Text("a host name or an address"),
    default_words="as `--host`",
    doc="what an ASGI server of your own (uvicorn) listens on; `serve` and `gateway` set it",
)
SECRET_KEY: Setting[str | None] = Setting(
    name="HELEXA_SECRET_KEY",
    kind=kinds.Text("a text of at least 16 characters; use 50 random ones", min_characters=16),
    default_words="kept in the data directory",
    is_secret=True,
    readers=frozenset({Reader.GATEWAY, Reader.CONTROL, Reader.COMMANDS}),
    doc="signs sessions and digests API keys, at least 16 characters. With several gateways set "
    "the same on each and on the control, or keys that one made are unknown to the others. A "
    "gateway or control that has none and cannot write one does not start",
)
DEBUG: Setting[bool] = Setting(
    name="HELEXA_DEBUG",
    kind=kinds.Flag(),
    default=False,
    readers=frozenset({Reader.GATEWAY, Reader.CONTROL}),
    doc="for development alone: error pages show source code and settings to everybody who sees "
    "them",
)
MAX_BODY_BYTES: Setting[int] = Setting(
    name="HELEXA_MAX_BODY_BYTES",
    kind=kinds.WholeNumber(1024, kinds.MAX_BYTES, "bytes"),
    default=32 * kinds.MIB,
    doc="the largest body of a request; larger ones get 413",
)
MAX_OPEN_REQUESTS: Setting[int] = Setting(
    name="HELEXA_MAX_OPEN_REQUESTS",
    kind=kinds.WholeNumber(1, kinds.MAX_COUNT, "requests"),
    default=4096,
    doc="how many requests a gateway has open at once; more get 503 `queue_full`, which names the "
    "bound",
)
MAX_OPEN_BODY_BYTES: Setting[int] = Setting(
    name="HELEXA_MAX_OPEN_BODY_BYTES",
    kind=kinds.WholeNumber(1024, kinds.MAX_BYTES, "bytes"),
    default=256 * kinds.MIB,
    doc="how large the bodies of a gateway's open requests may be together",
)
MAX_WAITING_REQUESTS: Setting[int] = Setting(
    name="HELEXA_MAX_WAITING_REQUESTS",
    kind=kinds.WholeNumber(0, kinds.MAX_COUNT, "requests"),
    default=2000,
    doc="how many requests of a gateway may wait for models to be loaded, and as many for "
    "reservations of their budget to settle",
)
REQUEST_TIMEOUT_S: Setting[int] = Setting(
    name="HELEXA_REQUEST_TIMEOUT_S",
    kind=kinds.WholeNumber(1, kinds.MAX_WAIT_S, "seconds"),
    default=600,
    doc="how long a request may wait for its first token, loads included",
)
HEAD_TIMEOUT_S: Setting[int] = Setting(
    name="HELEXA_HEAD_TIMEOUT_S",
    kind=kinds.WholeNumber(1, kinds.MAX_WAIT_S, "seconds"),
    default=10,
    doc="how long a client may take to send a request's head; one that takes longer gets 408. See "
    "[slow and many clients](security.md#slow-and-many-clients)",
)
BODY_TIMEOUT_S: Setting[int] = Setting(
    name="HELEXA_BODY_TIMEOUT_S",
    kind=kinds.WholeNumber(1, kinds.MAX_WAIT_S, "seconds"),
    default=20,
    doc="a request whose body brings less than 4 KiB in such a time, or takes over an hour, "
    "gets 408",
)
IDLE_TIMEOUT_S: Setting[int] = Setting(
    name="HELEXA_IDLE_TIMEOUT_S",
    kind=kinds.WholeNumber(1, kinds.MAX_WAIT_S, "seconds"),
    default=75,
    doc="how long a connection is kept on which nothing is asked: longer than a proxy in front of "
    "the gateway keeps it",
)
MAX_CONNECTIONS_PER_ADDRESS: Setting[int] = Setting(
    name="HELEXA_MAX_CONNECTIONS_PER_ADDRESS",
    kind=kinds.WholeNumber(1, kinds.MAX_COUNT, "connections"),
    default=512,
    doc="how many connections one client may have open; more get 429. Of IPv6 a /64 network is one "
    "client. This host and `HELEXA_TRUSTED_PROXIES` are not counted",
)
MAX_IMAGE_BYTES: Setting[int] = Setting(
    name="HELEXA_MAX_IMAGE_BYTES",
    kind=kinds.WholeNumber(1, kinds.MAX_BYTES, "bytes"),
    default=20 * kinds.MIB,
    doc="the largest image of a request, as a file",
)
MAX_IMAGE_PIXELS: Setting[int] = Setting(
    name="HELEXA_MAX_IMAGE_PIXELS",
    kind=kinds.WholeNumber(1, kinds.MAX_COUNT, "pixels"),
    default=50_000_000,
    doc="the largest image of a request, in pixels",
)
MAX_IMAGES: Setting[int] = Setting(
    name="HELEXA_MAX_IMAGES",
    kind=kinds.WholeNumber(0, kinds.MAX_COUNT, "images"),
    default=100,
    doc="how many images one request may have, those of the responses it continues included",
)
MAX_IMAGES_BYTES: Setting[int] = Setting(
    name="HELEXA_MAX_IMAGES_BYTES",
    kind=kinds.WholeNumber(0, kinds.MAX_BYTES, "bytes"),
    default=64 * kinds.MIB,
    doc="how large the images of one request may be together. Images come inside bodies, so "
    "`HELEXA_MAX_BODY_BYTES` bounds them too",
)
IMAGE_HOSTS: Setting[tuple[str, ...]] = Setting(
    name="HELEXA_IMAGE_HOSTS",
    kind=kinds.WordList(
        kinds.IMAGE_HOST,
        "a list of hosts like images.example.org or 10.0.0.5:80, or *",
        may_be_any=True,
        lowers=True,
    ),
    default=(),
    doc="hosts whose images gateways fetch when clients give an address: `images.example.org`, "
    "`*.example.org`, `10.0.0.5:8080`, `*` for all public ones. Without it addresses are refused. "
    "Only a host that is named literally may be in a private network",
)
MAX_STORED_RESPONSES: Setting[int] = Setting(
    name="HELEXA_MAX_STORED_RESPONSES",
    kind=kinds.WholeNumber(0, kinds.MAX_COUNT, "responses"),
    default=10_000,
    doc="how many responses one account may keep",
)
MAX_STORED_RESPONSE_BYTES: Setting[int] = Setting(
    name="HELEXA_MAX_STORED_RESPONSE_BYTES",
    kind=kinds.WholeNumber(0, kinds.MAX_BYTES, "bytes"),
    default=kinds.GIB,
    doc="how large the stored responses of one account may be together",
)
MAX_STORED_FILES: Setting[int] = Setting(
    name="HELEXA_MAX_STORED_FILES",
    kind=kinds.WholeNumber(0, kinds.MAX_COUNT, "files"),
    default=1000,
    doc="how many [files](../api.md#files-and-batches) one account may keep, results of batches "
    "included",
)
MAX_STORED_FILE_BYTES: Setting[int] = Setting(
    name="HELEXA_MAX_STORED_FILE_BYTES",
    kind=kinds.WholeNumber(0, kinds.MAX_BYTES, "bytes"),
    default=4 * kinds.GIB,
    doc="how large the files of one account may be together before it may add no more",
)
MAX_OPEN_BATCHES: Setting[int] = Setting(
    name="HELEXA_MAX_OPEN_BATCHES",
    kind=kinds.WholeNumber(0, kinds.MAX_COUNT, "batches"),
    default=100,
    doc="how many batches of one account may be open",
)
BATCH_DISCOUNT_PERCENT: Setting[int] = Setting(
    name="HELEXA_BATCH_DISCOUNT_PERCENT",
    kind=kinds.WholeNumber(0, 100, "percent"),
    default=0,
    doc="how much less a request of a batch costs",
)
UNKNOWN_FIELDS: Setting[str] = Setting(
    name="HELEXA_UNKNOWN_FIELDS",
    kind=kinds.Choice(("refuse", "ignore")),
    default="refuse",
    doc="`ignore`: fields that this server does not know are left out of requests, and the "
    "answer's header `x-helexa-ignored` names them; over a WebSocket they are refused either way",
)
ALWAYS_STREAM_USAGE: Setting[bool] = Setting(
    name="HELEXA_ALWAYS_STREAM_USAGE",
    kind=kinds.Flag(),
    default=False,
    doc="1: streams of OpenAI's dialects end with their usage whether or not the client asks",
)
BENCH_PUBLIC: Setting[bool] = Setting(
    name="HELEXA_BENCH_PUBLIC",
    kind=kinds.Flag(),
    default=False,
    doc="1: everybody may read the [bench's results](bench.md), without a key or a login",
)
DRAIN_SECONDS: Setting[int] = Setting(
    name="HELEXA_DRAIN_SECONDS",
    kind=kinds.WholeNumber(0, 86_400, "seconds"),
    default=300,
    readers=frozenset({Reader.SERVE, Reader.GATEWAY}),
    doc="how long a gateway that was asked to stop lets open answers finish: long enough for an "
    "agent's. Without any it stops at once, and a second signal ends them at once. Give a service "
    "manager a longer stop timeout",
)
OTLP_ENDPOINT: Setting[str | None] = Setting(
    name="OTEL_EXPORTER_OTLP_ENDPOINT",
    kind=kinds.Url(("http", "https"), "an address like http://collector:4318"),
    doc="the OpenTelemetry collector that gets a [trace of each request](monitoring.md#traces), by "
    "OTLP over HTTP at `/v1/traces` below it",
)
OTLP_TRACES_ENDPOINT: Setting[str | None] = Setting(
    name="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    kind=kinds.Url(("http", "https"), "an address like http://collector:4318/v1/traces"),
    doc="the same as a whole address, instead of the former",
)
OTLP_PROTOCOL: Setting[str] = Setting(
    name="OTEL_EXPORTER_OTLP_PROTOCOL",
    kind=kinds.Choice(("http/protobuf",)),
    default="http/protobuf",
    doc="how traces are sent; there is one way",
)
OTLP_HEADERS: Setting[str | None] = Setting(
    name="OTEL_EXPORTER_OTLP_HEADERS",
    kind=kinds.Text("a list like name=value,name=value"),
    is_secret=True,
    doc="headers for the collector, such as its key: `authorization=Bearer%20KEY`",
)
METRICS_LISTEN: Setting[MetricsSetting] = Setting(
    name="HELEXA_METRICS_LISTEN",
    kind=MetricsAddress(),
    default=MetricsSetting(),
    default_words="the gateway's host, port 31314",
    reads_blank=True,
    doc="where Prometheus reads the metrics: `HOST:PORT`, `:PORT` or `off`",
)
SERVE_KEY: Setting[str | None] = Setting(
    name="HELEXA_SERVE_KEY",
    kind=kinds.Text(),
    is_secret=True,
    is_internal=True,
    readers=frozenset({Reader.SERVE, Reader.GATEWAY}),
    doc="the key with which `serve` asks its own gateway, new at each start",
)
