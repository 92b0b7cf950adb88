"""Settings of storage: locations and retention times, read by gateways and the control plane."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from inference.environment import API_KEY, SECRET_NAMES
from inference.settings import kinds
from inference.settings.setting import Reader, Setting

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
OTHERS_KEY = re.compile(rf"(?!(?:{'|'.join(sorted(SECRET_NAMES - API_KEY))})$){VARIABLE.pattern}")
"""A variable whose key is for another server. None of this one's own secrets is ever sent to one; a
key of the API may be another helexa's."""


HUGGINGFACE = "huggingface"
RESERVED = (HUGGINGFACE, "path", "pypi", "upstream", "file", "http", "https", "none")
"""Beginnings with a meaning of their own in a source, a file or an address."""
SCHEME = re.compile(r"[a-z][a-z0-9-]{0,39}")
DEFAULT_WORD = "default"


@dataclass(frozen=True, slots=True)
class NamedSource:
    scheme: str
    endpoint: str
    """An http or https URL without a trailing slash."""
    token_variable: str | None = None
    """The environment variable of its token; ``None``: no token is sent."""
    cache: Path | None = None
    """Its cache folder; ``None``: in the data directory."""


@dataclass(frozen=True, slots=True)
class NamedSources:
    by_order: tuple[NamedSource, ...] = ()
    default_scheme: str = HUGGINGFACE
    """The source of a bare ``org/name``."""

    @property
    def token_variables(self) -> frozenset[str]:
        return frozenset(one.token_variable for one in self.by_order if one.token_variable)


@dataclass(frozen=True, slots=True)
class SourceList:
    rule: str = (
        "a list of sources like helexa=https://hub.example.org token=HUB_TOKEN cache=/srv/hub "
        "default,lab=http://lab:8080 (NAME=URL, each with token=VARIABLE, cache=/absolute/path and "
        "default where wanted)"
    )

    def parse(self, word: str) -> NamedSources:
        found: dict[str, NamedSource] = {}
        default = ""
        for part in word.split(","):
            source, is_default = _read(part)
            if source.scheme in found:
                raise ValueError(f"{source.scheme} is named twice")
            if is_default and default:
                raise ValueError(f"{default} and {source.scheme} cannot both be the default")
            found[source.scheme] = source
            default = source.scheme if is_default else default
        return NamedSources(tuple(found.values()), default or HUGGINGFACE)


def _read(part: str) -> tuple[NamedSource, bool]:
    first, *options = part.split() or [""]
    scheme, equals, url = first.partition("=")
    if not equals or not SCHEME.fullmatch(scheme):
        raise ValueError(f"{first!r} is not NAME=URL with a name of lower-case letters")
    if scheme in RESERVED:
        raise ValueError(f"{scheme} is no free name")
    values: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        is_known = name in ("token", "cache") if equals else name == DEFAULT_WORD
        if not is_known or (equals and not value):
            raise ValueError(f"{option!r} is none of token=VARIABLE, cache=PATH, default")
        if name in values:
            raise ValueError(f"{scheme} has {name} twice")
        values[name] = value
    source = NamedSource(
        scheme=scheme,
        endpoint=_endpoint(url),
        token_variable=_token_variable(values.get("token")),
        cache=_cache(values.get("cache")),
    )
    return source, DEFAULT_WORD in values


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is no http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a token belongs into an environment variable, not into the URL")
    return url.rstrip("/")


def _token_variable(name: str | None) -> str | None:
    """Refuses secrets of helexa's own: a source is sent its token."""
    if name is None:
        return None
    if not VARIABLE.fullmatch(name):
        raise ValueError("token is the name of an environment variable")
    if name in SECRET_NAMES:
        raise ValueError(f"{name} is a secret for another use, and a source is sent its token")
    return name


def _cache(path: str | None) -> Path | None:
    if path is None:
        return None
    if not Path(path).is_absolute():
        raise ValueError(f"cache={path} is no absolute path")
    return Path(path)


EVERYBODY = frozenset(Reader)
SITE = frozenset({Reader.SERVE, Reader.GATEWAY, Reader.CONTROL, Reader.COMMANDS})

DATABASE_URL: Setting[str | None] = Setting(
    name="DATABASE_URL",
    kind=kinds.Url(
        ("sqlite", "postgres", "postgresql", "pgsql"),
        "like postgres://user:password@host/helexa or sqlite:////path/to/file",
    ),
    default_words="SQLite in the data directory",
    is_secret=True,
    readers=SITE,
    doc="`postgres://…`; several gateways need PostgreSQL",
)
REDIS_URL: Setting[str | None] = Setting(
    name="REDIS_URL",
    kind=kinds.Url(("redis", "rediss", "unix"), "like redis://:password@host:6379/0 or unix://…"),
    default_words="the private Redis of `serve`",
    is_secret=True,
    readers=SITE | {Reader.NEURON},
    doc="`redis://…`, `rediss://…` or `unix://…`",
)
DATA_DIR: Setting[Path | None] = Setting(
    name="HELEXA_DATA_DIR",
    kind=kinds.FilePath(),
    default_words="`var/` in the checkout; of a wheel `~/.local/share/helexa`",
    readers=EVERYBODY,
    doc="where everything is written, downloaded models included",
)
FILES_DIR: Setting[Path | None] = Setting(
    name="HELEXA_FILES_DIR",
    kind=kinds.FilePath(),
    default_words="`files` in the data directory",
    readers=frozenset({Reader.GATEWAY, Reader.CONTROL}),
    doc="where contents of files and results of batches are stored. With gateways on several "
    "hosts: one directory that all of them share (NFS, a volume), so that each serves every file "
    "and continues any batch",
)
RESPONSE_RETENTION_DAYS: Setting[int] = Setting(
    name="HELEXA_RESPONSE_RETENTION_DAYS",
    kind=kinds.WholeNumber(0, kinds.MAX_RETENTION_DAYS, "days"),
    default=30,
    readers=frozenset({Reader.GATEWAY, Reader.CONTROL}),
    doc="stored responses are deleted after so many days; 0 keeps them",
)
LEDGER_RETENTION_DAYS: Setting[int] = Setting(
    name="HELEXA_LEDGER_RETENTION_DAYS",
    kind=kinds.WholeNumber(0, kinds.MAX_RETENTION_DAYS, "days"),
    default=400,
    readers=frozenset({Reader.CONTROL}),
    doc="ledger entries are deleted after so many days; 0 keeps them. Hourly sums stay",
)
REQUEST_RETENTION_DAYS: Setting[int] = Setting(
    name="HELEXA_REQUEST_RETENTION_DAYS",
    kind=kinds.WholeNumber(0, kinds.MAX_RETENTION_DAYS, "days"),
    default=30,
    readers=frozenset({Reader.CONTROL}),
    doc="[request records](monitoring.md#requests) are deleted after so many days; 0 keeps them",
)
MAX_REQUEST_RECORDS: Setting[int] = Setting(
    name="HELEXA_MAX_REQUEST_RECORDS",
    kind=kinds.WholeNumber(0, kinds.MAX_COUNT, "records"),
    default=1_000_000,
    readers=frozenset({Reader.CONTROL}),
    doc="beyond so many, the oldest [request records](monitoring.md#requests) are deleted; 0: no "
    "limit",
)
CAPTURE_RETENTION_DAYS: Setting[int] = Setting(
    name="HELEXA_CAPTURE_RETENTION_DAYS",
    kind=kinds.WholeNumber(1, kinds.MAX_RETENTION_DAYS, "days"),
    default=7,
    readers=frozenset({Reader.CONTROL}),
    doc="[captured bodies](monitoring.md#captured-bodies) are deleted after so many days",
)
REDIS_STALL_S: Setting[int] = Setting(
    name="HELEXA_REDIS_STALL_S",
    kind=kinds.WholeNumber(1, 86_400, "seconds"),
    default=30,
    readers=frozenset({Reader.GATEWAY, Reader.NEURON}),
    doc="how long open requests wait for a Redis that does not answer; set the same for gateways "
    "and neurons",
)
SOURCES: Setting[NamedSources] = Setting(
    name="HELEXA_SOURCES",
    kind=SourceList(),
    default=NamedSources(),
    default_words="none",
    readers=EVERYBODY,
    doc="hubs of your own beside Hugging Face, as `helexa=https://hub.example.org "
    "token=HUB_TOKEN`: models are then added from `helexa:org/name`. The same on the gateway's "
    "host and on each neuron's. See [Named sources](models.md#named-sources)",
)
BENCH_VARIABLES: Setting[tuple[str, ...]] = Setting(
    name="HELEXA_BENCH_VARIABLES",
    kind=kinds.WordList(
        OTHERS_KEY, "a list of variables like PEER_API_KEY, none of helexa's own secrets"
    ),
    default=(),
    default_words="none",
    readers=frozenset({Reader.SERVE}),
    doc="variables with the keys of [targets](bench.md#targets) that sweeps of the bench page "
    "measure, like `PEER_API_KEY`. `serve` hands these to the control, and no other secret of "
    "other programs",
)
