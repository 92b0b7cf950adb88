"""Nouns that operators manage: their rows in REST (``fleet.api.rows``) and flags of commands
(``fleet.management.verbs``). Models' fields are in ``fleet.catalogue.settings``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fleet.catalogue.kinds import Count, Flag, Money, NeuronNames, Number, Text, Word
from fleet.live.desired_state import AdmissionPolicy
from fleet.upstreams import MAX_CONCURRENCY, MAX_SECRET_LENGTH, MAX_TIMEOUT_S

DURATION = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
NONE_WORDS = ("", "none")
UUID_PATTERN = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True, slots=True)
class Names:
    """A list of names; each noun's service checks them."""

    def problem(self, value: object) -> str | None:
        is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
        if not is_list or any("\x00" in one for one in value):  # type: ignore[attr-defined]
            return f"{value!r} is not a list of names"
        return None


@dataclass(frozen=True, slots=True)
class Moment:
    """ISO 8601 in JSON, in UTC where it names no offset; ``None``: never."""

    def problem(self, value: object) -> str | None:
        if value is None:
            return None
        try:
            datetime.fromisoformat(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return f"{value!r} is not a moment, as in 2027-01-31T12:00:00Z"
        return None


Kind = Text | Word | Count | Number | Money | Flag | NeuronNames | Names | Moment


def moment_of(value: str | None) -> datetime | None:
    if value is None:
        return None
    return _parsed_moment(value)


def _parsed_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def value_of_text(kind: Kind, text: str) -> Any:
    """Raises ``ValueError`` for users. The server checks whether the value is allowed."""
    match kind:
        case Flag():
            if text not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
            return text == "true"
        case Count() | Money():
            return _number(text, int, "a whole number")
        case Number():
            return _number(text, float, "a number")
        case NeuronNames() | Names():
            return names_of_text(text)
        case Moment():
            return None if text in (*NONE_WORDS, "never") else expiry(text).isoformat()
        case _:
            return text


def _number(text: str, read: Callable[[str], float], what: str) -> float | None:
    if text in NONE_WORDS:
        return None
    try:
        return read(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {what}, or none") from None


def names_of_text(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", text) if word]


def expiry(text: str, *, now: datetime | None = None) -> datetime:
    """Reads ``30d``, ``12h``, or a date or moment in UTC. Raises ``ValueError``."""
    now = now or datetime.now(UTC)
    try:
        if match := DURATION.fullmatch(text):
            return now + timedelta(**{UNITS[match[2]]: int(match[1])})
        return _parsed_moment(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a duration, as in 30d or 12h, nor a date, as in 2027-01-31"
        ) from None


@dataclass(frozen=True, slots=True)
class Field:
    """``name`` is JSON's. ``flag`` is the command's, without dashes; empty: the name."""

    name: str
    kind: Kind
    help: str = ""
    _: KW_ONLY
    flag: str = ""
    placeholder: str = ""
    is_required: bool = False
    may_change: bool = True

    @property
    def option(self) -> str:
        return f"--{self.flag or self.name.replace('_', '-')}"


def fixed(name: str, kind: Kind, help: str) -> Field:
    return Field(name, kind, help, is_required=True, may_change=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """``path``: below ``/api/``; a row is at ``path/{id}``. ``word``: the noun in messages."""

    path: str
    word: str
    id_field: str
    fields: tuple[Field, ...] = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    """Query parameter of the list → column (values by commas); empty: the list reads it itself."""
    filter_help: Mapping[str, str] = field(default_factory=dict)
    id_help: str = ""
    id_metavar: str = ""
    id_pattern: str = ".+"
    id_of_word: Callable[[str], str] = str

    @property
    def changeable(self) -> tuple[Field, ...]:
        return tuple(one for one in self.fields if one.may_change)


ALIASES = Noun(
    path="aliases",
    word="alias",
    id_field="name",
    fields=(
        fixed("name", Text(max_length=100), "what clients may ask for"),
        Field(
            "model",
            Text(max_length=100, is_required=True),
            "the model of the catalogue that answers",
            is_required=True,
        ),
    ),
    filters={"model": "model__name"},
)
INVITATIONS = Noun(
    path="invitations",
    word="invitation",
    id_field="neuron",
    fields=(
        fixed("neuron", Text(max_length=63, is_required=True), "the neuron's name"),
        Field(
            "address",
            Text(max_length=255),
            "where that host reaches Redis, where it is not what serve --share has",
            placeholder="HOST:PORT",
            may_change=False,
        ),
        Field(
            "again",
            Flag(),
            "true: also where a host is connected by an earlier line, which is void then",
            may_change=False,
        ),
    ),
    filters={"neuron": "neuron_name", "invited_by": "invited_by"},
)
NEEDED = Text(max_length=500, is_required=True)
SECONDS = Count(most=MAX_TIMEOUT_S, is_optional=False)
UPSTREAMS = Noun(
    path="upstreams",
    word="upstream",
    id_field="name",
    fields=(
        fixed("name", Text(max_length=63, is_required=True), "how it is called here"),
        Field(
            "url",
            NEEDED,
            "where its API begins, as http://gpu-box:8000/v1",
            flag="endpoint",  # --url is the server's
            placeholder="URL",
            is_required=True,
        ),
        Field(
            "dialect",
            Word(("openai", "anthropic", "ollama")),
            "whose API it speaks: openai, anthropic or ollama; openai where none is given",
        ),
        Field(
            "key",
            Text(max_length=MAX_SECRET_LENGTH, is_required=True),
            "its secret, which is stored encrypted and never shown; empty removes it",
        ),
        Field("leaves_network", Flag(), "whether requests to it leave your network"),
        Field(
            "concurrency",
            Count(most=MAX_CONCURRENCY, is_optional=False),
            "how many requests each gateway sends it at once",
        ),
        Field("connect_timeout_s", SECONDS, "seconds until it has accepted a connection"),
        Field("first_token_timeout_s", SECONDS, "seconds until the first part of an answer"),
        Field("token_timeout_s", SECONDS, "seconds between two parts of an answer"),
        Field("proxy", NEEDED, "an HTTP proxy on the way to it; empty: none"),
        Field(
            "ca_file",
            NEEDED,
            "certificates of a private CA, a file on every gateway's host; empty: none",
        ),
    ),
    filters={"dialect": "dialect", "leaves_network": "leaves_network"},
)
POLICY = Noun(
    path="policy",
    word="policy",
    id_field="",
    fields=(
        Field(
            "admission",
            Word(tuple(policy.value for policy in AdmissionPolicy)),
            "how an unknown neuron is admitted",
        ),
    ),
)
NEURONS = Noun(
    path="neurons",
    word="neuron",
    id_field="name",
    filters={"status": "status"},
)
MODELS = Noun(
    path="catalogue",
    word="model",
    id_field="name",
    id_metavar="MODEL",
    filters={"enabled": "enabled", "pinned": "pinned", "base": "base", "source": "source"},
)
JOBS = Noun(
    path="load-jobs",
    word="job",
    id_field="id",
    id_help="as jobs list has it",
    id_pattern=UUID_PATTERN,
    filters={"kind": "kind", "status": "status", "model": "model_name", "neuron": "neuron__name"},
)
DOWNLOADS = Noun(
    path="downloads",
    word="download",
    id_field="id",
    id_help="as downloads list has it",
    id_pattern=UUID_PATTERN,
    filters={"kind": "kind", "status": "status", "source": "source", "neuron": "neuron__name"},
)
SETTINGS = Noun(
    path="settings",
    word="setting",
    id_field="name",
    filters={"name": "", "set": ""},
    filter_help={
        "name": "only those with this in their names; several by commas",
        "set": "true or false: whether the environment has it",
    },
)
AUDIT = Noun(
    path="audit",
    word="audit entry",
    id_field="id",
    filters={"actor": "actor", "action": "action", "object": "object_id"},
)
