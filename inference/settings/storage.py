"""Settings of storage: locations and retention times, read by gateways and the control plane."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from inference.environment import API_KEY, SECRET_NAMES
from inference.settings.setting import (
    FILE_PATH,
    MAX_COUNT,
    MAX_RETENTION_DAYS,
    Form,
    Setting,
    url,
    whole,
    word_list,
)

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
OTHERS_KEY = re.compile(rf"(?!(?:{'|'.join(sorted(SECRET_NAMES - API_KEY))})$){VARIABLE.pattern}")
"""Another server's key. None of this one's secrets is ever sent to one."""


HUGGINGFACE = "huggingface"
RESERVED = (HUGGINGFACE, "path", "pypi", "upstream", "file", "http", "https", "none")
"""Beginnings with a meaning of their own in a source, a file or an address."""
SCHEME = re.compile(r"[a-z][a-z0-9-]{0,39}")
DEFAULT_WORD = "default"


@dataclass(frozen=True, slots=True)
class NamedSource:
    scheme: str
    endpoint: str
    """Without a trailing slash."""
    token_variable: str | None = None
    """``None``: no token is sent."""
    cache: Path | None = None
    """``None``: in the data directory."""


@dataclass(frozen=True, slots=True)
class NamedSources:
    by_order: tuple[NamedSource, ...] = ()
    default_scheme: str = HUGGINGFACE
    """The source of a bare ``org/name``."""

    @property
    def token_variables(self) -> frozenset[str]:
        return frozenset(one.token_variable for one in self.by_order if one.token_variable)


def _sources(word: str) -> NamedSources:
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


SOURCE_LIST = Form(
    "a list of sources like helexa=https://hub.example.org token=HUB_TOKEN cache=/srv/hub "
    "default,lab=http://lab:8080 (NAME=URL, each with token=VARIABLE, cache=/absolute/path and "
    "default where wanted)",
    _sources,
)
DATABASE = url(
    *("sqlite", "postgres", "postgresql", "pgsql"),
    rule="like postgres://user:password@host/helexa or sqlite:////path/to/file",
)
REDIS = url(*("redis", "rediss", "unix"), rule="like redis://:password@host:6379/0 or unix://…")
VARIABLES = word_list(
    OTHERS_KEY, "a list of variables like PEER_API_KEY, none of helexa's own secrets"
)
DAYS = whole(0, MAX_RETENTION_DAYS, "days")

DATABASE_URL: Setting[str | None] = Setting("DATABASE_URL", DATABASE, is_secret=True)
REDIS_URL: Setting[str | None] = Setting("REDIS_URL", REDIS, is_secret=True)
DATA_DIR: Setting[Path | None] = Setting("HELEXA_DATA_DIR", FILE_PATH)
FILES_DIR: Setting[Path | None] = Setting("HELEXA_FILES_DIR", FILE_PATH)
RESPONSE_RETENTION_DAYS = Setting("HELEXA_RESPONSE_RETENTION_DAYS", DAYS, 30)
LEDGER_RETENTION_DAYS = Setting("HELEXA_LEDGER_RETENTION_DAYS", DAYS, 400)
REQUEST_RETENTION_DAYS = Setting("HELEXA_REQUEST_RETENTION_DAYS", DAYS, 30)
MAX_REQUEST_RECORDS = Setting(
    "HELEXA_MAX_REQUEST_RECORDS", whole(0, MAX_COUNT, "records"), 1_000_000
)
CAPTURE_RETENTION_DAYS = Setting(
    "HELEXA_CAPTURE_RETENTION_DAYS", whole(1, MAX_RETENTION_DAYS, "days"), 7
)
REDIS_STALL_S = Setting("HELEXA_REDIS_STALL_S", whole(1, 86_400, "seconds"), 30)
SOURCES = Setting("HELEXA_SOURCES", SOURCE_LIST, NamedSources())
BENCH_VARIABLES = Setting("HELEXA_BENCH_VARIABLES", VARIABLES, ())
