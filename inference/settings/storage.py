"""Settings of storage: locations and retention times, read by gateways and the control plane."""

from __future__ import annotations

from pathlib import Path

from inference.settings.addresses import Url, WordList
from inference.settings.kinds import FilePath, WholeNumber
from inference.settings.limits import MAX_COUNT, MAX_RETENTION_DAYS
from inference.settings.named_sources import NamedSources, SourceList
from inference.settings.setting import Reader, Setting
from inference.settings.variable_names import OTHERS_KEY

EVERYBODY = frozenset(Reader)
SITE = frozenset({Reader.SERVE, Reader.GATEWAY, Reader.CONTROL, Reader.COMMANDS})

DATABASE_URL: Setting[str | None] = Setting(
    name="DATABASE_URL",
    kind=Url(
        ("sqlite", "postgres", "postgresql", "pgsql"),
        "like postgres://user:password@host/helexa or sqlite:////path/to/file",
    ),
    default=None,
    default_words="SQLite in the data directory",
    is_secret=True,
    readers=SITE,
    doc="`postgres://…`; several gateways need PostgreSQL",
)
REDIS_URL: Setting[str | None] = Setting(
    name="REDIS_URL",
    kind=Url(("redis", "rediss", "unix"), "like redis://:password@host:6379/0 or unix://…"),
    default=None,
    default_words="the private Redis of `serve`",
    is_secret=True,
    readers=SITE | {Reader.NEURON},
    doc="`redis://…`, `rediss://…` or `unix://…`",
)
DATA_DIR: Setting[Path | None] = Setting(
    name="HELEXA_DATA_DIR",
    kind=FilePath(),
    default=None,
    default_words="`var/` in the checkout; of a wheel `~/.local/share/helexa`",
    readers=EVERYBODY,
    doc="where everything is written, downloaded models included",
)
FILES_DIR: Setting[Path | None] = Setting(
    name="HELEXA_FILES_DIR",
    kind=FilePath(),
    default=None,
    default_words="`files` in the data directory",
    readers=frozenset({Reader.GATEWAY, Reader.CONTROL}),
    doc="where contents of files and results of batches are stored. With gateways on several "
    "hosts: one directory that all of them share (NFS, a volume), so that each serves every file "
    "and continues any batch",
)
RESPONSE_RETENTION_DAYS: Setting[int] = Setting(
    name="HELEXA_RESPONSE_RETENTION_DAYS",
    kind=WholeNumber(0, MAX_RETENTION_DAYS, "days"),
    default=30,
    readers=frozenset({Reader.GATEWAY, Reader.CONTROL}),
    doc="stored responses are deleted after so many days; 0 keeps them",
)
LEDGER_RETENTION_DAYS: Setting[int] = Setting(
    name="HELEXA_LEDGER_RETENTION_DAYS",
    kind=WholeNumber(0, MAX_RETENTION_DAYS, "days"),
    default=400,
    readers=frozenset({Reader.CONTROL}),
    doc="ledger entries are deleted after so many days; 0 keeps them. Hourly sums stay",
)
REQUEST_RETENTION_DAYS: Setting[int] = Setting(
    name="HELEXA_REQUEST_RETENTION_DAYS",
    kind=WholeNumber(0, MAX_RETENTION_DAYS, "days"),
    default=30,
    readers=frozenset({Reader.CONTROL}),
    doc="[request records](monitoring.md#requests) are deleted after so many days; 0 keeps them",
)
MAX_REQUEST_RECORDS: Setting[int] = Setting(
    name="HELEXA_MAX_REQUEST_RECORDS",
    kind=WholeNumber(0, MAX_COUNT, "records"),
    default=1_000_000,
    readers=frozenset({Reader.CONTROL}),
    doc="beyond so many, the oldest [request records](monitoring.md#requests) are deleted; 0: no "
    "limit",
)
CAPTURE_RETENTION_DAYS: Setting[int] = Setting(
    name="HELEXA_CAPTURE_RETENTION_DAYS",
    kind=WholeNumber(1, MAX_RETENTION_DAYS, "days"),
    default=7,
    readers=frozenset({Reader.CONTROL}),
    doc="[captured bodies](monitoring.md#captured-bodies) are deleted after so many days",
)
REDIS_STALL_S: Setting[int] = Setting(
    name="HELEXA_REDIS_STALL_S",
    kind=WholeNumber(1, 86_400, "seconds"),
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
    kind=WordList(
        OTHERS_KEY, "a list of variables like PEER_API_KEY, none of helexa's own secrets"
    ),
    default=(),
    default_words="none",
    readers=frozenset({Reader.SERVE}),
    doc="variables with the keys of [targets](bench.md#targets) that sweeps of the bench page "
    "measure, like `PEER_API_KEY`. `serve` hands these to the control, and no other secret of "
    "other programs",
)
