"""Metering's nouns whose fields operators set: accounts, who belongs to them, keys and budgets."""

from __future__ import annotations

from fleet.catalogue.kinds import Count, Flag, Text, Word
from fleet.nouns.noun import Field, Moment, Names, Noun
from metering.keys.api_key import prefix_of
from metering.models import Budget, Membership
from metering.principal import Scope
from metering.requests.filters import FILTERS
from metering.series.steps import Kind
from metering.services.accounts import MAX_WEIGHT
from metering.services.budgets import MAX_CAP, MAX_WINDOW_S
from metering.services.keys import DEFAULT_SCOPES, MAX_NAME_CHARS


def prefix_of_word(word: str) -> str:
    """Returns the prefix of a whole key, so that no URL or log line holds a key; any other word as
    it is."""
    return prefix_of(word) or word


ROLES = tuple(Membership.Role.values)
UNITS = tuple(Budget.Unit.values)
WINDOWS = tuple(Budget.Window.values)
ACCOUNT_NAME = Text(max_length=64)
LIMITS = (
    Field(
        name="requests_per_minute",
        flag="rpm",
        kind=Count(),
        placeholder="N",
        help="requests per minute; none: no limit",
    ),
    Field(
        name="tokens_per_minute",
        flag="tpm",
        kind=Count(),
        placeholder="N",
        help="tokens per minute; none: no limit",
    ),
    Field(
        name="max_concurrent",
        kind=Count(),
        placeholder="N",
        help="requests at once; none: no limit",
    ),
)
CAPTURE = Field(
    name="capture_until",
    kind=Moment(),
    placeholder="WHEN",
    help="store the bodies of its requests until then: 2h, at most 7d, or never",
)
ACCOUNTS = Noun(
    path="accounts",
    word="account",
    id_field="name",
    fields=(
        Field(
            name="name",
            kind=ACCOUNT_NAME,
            help="a lower-case slug, as in research-team",
            is_required=True,
            may_change=False,
        ),
        Field(name="description", kind=Text(max_length=200), placeholder="TEXT"),
        Field(
            name="weight",
            kind=Count(most=MAX_WEIGHT, is_optional=False),
            placeholder="N",
            help="its share of a busy engine (1)",
        ),
        Field(name="enabled", kind=Flag(), help="true, or false: its keys are refused"),
        *LIMITS,
        CAPTURE,
    ),
    filters=("enabled",),
)
MEMBERS = Noun(
    path="members",
    word="member",
    id_field="id",
    fields=(
        Field(
            name="account",
            kind=ACCOUNT_NAME,
            help="the account",
            is_required=True,
            may_change=False,
        ),
        Field(
            name="user",
            kind=Text(max_length=150),
            help="the name that the person logs in with",
            is_required=True,
            may_change=False,
        ),
        Field(
            name="role",
            kind=Word(ROLES),
            help="owner, member or viewer",
            is_required=True,
        ),
    ),
    filters=("account", "user", "role"),
    id_help="ACCOUNT/USER",
    id_pattern="[^/]+/.+",
)
KEYS = Noun(
    path="keys",
    word="key",
    id_field="prefix",
    fields=(
        Field(
            name="account",
            kind=ACCOUNT_NAME,
            help="who pays",
            is_required=True,
            may_change=False,
        ),
        Field(
            name="name",
            kind=Text(max_length=MAX_NAME_CHARS),
            placeholder="TEXT",
            help="what it is for",
        ),
        Field(
            name="scopes",
            kind=Names(),
            help=f"of {', '.join(scope.value for scope in Scope)} "
            f"(a new key: {','.join(DEFAULT_SCOPES)})",
        ),
        Field(
            name="models",
            kind=Names(),
            help="names of the catalogue, or aliases; empty: all",
        ),
        Field(
            name="names_end_user",
            kind=Flag(),
            help="true: its clients are trusted to name their end user",
        ),
        Field(
            name="may_leave_network",
            kind=Flag(),
            help="false: its requests never go to upstreams outside your network",
        ),
        Field(
            name="expires_at",
            flag="expires",
            kind=Moment(),
            placeholder="WHEN",
            help="30d, 12h, 2027-01-31 or never",
        ),
        *LIMITS,
        CAPTURE,
    ),
    filters=("account", "status"),
    id_help="as in hx-0a1b2c3d4e",
    id_of_word=prefix_of_word,
)
BUDGETS = Noun(
    path="budgets",
    word="budget",
    id_field="id",
    id_help="a number, as budgets list has it",
    id_pattern="[0-9]+",
    fields=(
        Field(
            name="account",
            kind=ACCOUNT_NAME,
            help="the account that it caps, or",
            may_change=False,
        ),
        Field(
            name="key",
            flag="on-key",
            kind=Text(max_length=16),
            placeholder="PREFIX",
            help="the key that it caps",
            may_change=False,
        ),
        Field(
            name="unit",
            kind=Word(UNITS),
            help="tokens or micro_usd",
            is_required=True,
            may_change=False,
        ),
        Field(
            name="cap",
            kind=Count(most=MAX_CAP, is_optional=False),
            placeholder="N",
            help="in the unit",
            is_required=True,
        ),
        Field(name="window", kind=Word(WINDOWS), help="balance, day, month or seconds"),
        Field(
            name="window_s",
            kind=Count(most=MAX_WINDOW_S),
            placeholder="N",
            help="of a window of seconds",
        ),
    ),
    filters=("account", "key", "unit", "window"),
)
SERIES = Noun(
    path="series",
    word="series",
    id_field="name",
    fields=(),
    filters=("kind", "name", "range", "step"),
    filter_help={
        "kind": f"{', '.join(Kind)}; without it the fleet",
        "name": "whose; a device's is NEURON/cuda:0",
        "range": "how far back: 5m to 30d (3h)",
        "step": "in seconds; without it at most 200 points",
    },
)
REQUESTS = Noun(
    path="requests",
    word="request",
    id_field="id",
    fields=(Field(name="key", flag="on-key", kind=Text(max_length=100)),),
    id_help="the x-request-id of its response",
    id_pattern="[0-9A-Za-z-]{1,64}",
    filters=FILTERS,
)
