"""Metering's nouns with fields that operators set: accounts, members, keys and budgets."""

from __future__ import annotations

from fleet.catalogue.kinds import Count, Flag, Text, Word
from fleet.nouns import Field, Moment, Names, Noun, fixed
from metering.api_keys import prefix_of
from metering.models import Budget, Membership
from metering.principal import Scope
from metering.request_filters import FILTERS
from metering.series import RANGES, Kind
from metering.services import DEFAULT_SCOPES, MAX_CAP, MAX_NAME_CHARS, MAX_WEIGHT, MAX_WINDOW_S


def prefix_of_word(word: str) -> str:
    """No URL or log line may hold a whole key; other words stay."""
    return prefix_of(word) or word


ROLES = tuple(Membership.Role.values)
UNITS = tuple(Budget.Unit.values)
WINDOWS = tuple(Budget.Window.values)
ACCOUNT_NAME = Text(max_length=64)
LIMITS = tuple(
    Field(name, Count(), f"{counted}; none: no limit", flag=flag, placeholder="N")
    for name, counted, flag in (
        ("requests_per_minute", "requests per minute", "rpm"),
        ("tokens_per_minute", "tokens per minute", "tpm"),
        ("max_concurrent", "requests at once", ""),
    )
)
CAPTURE = Field(
    "capture_until",
    Moment(),
    "store the bodies of its requests until then: 2h, at most 7d, or never",
    placeholder="WHEN",
)
ACCOUNTS = Noun(
    path="accounts",
    word="account",
    id_field="name",
    fields=(
        fixed("name", ACCOUNT_NAME, "a lower-case slug, as in research-team"),
        Field("description", Text(max_length=200), placeholder="TEXT"),
        Field(
            "weight",
            Count(most=MAX_WEIGHT, is_optional=False),
            "its share of a busy engine (1)",
            placeholder="N",
        ),
        Field("enabled", Flag(), "true, or false: its keys are refused"),
        *LIMITS,
        CAPTURE,
    ),
    filters={"enabled": "enabled"},
)
MEMBERS = Noun(
    path="members",
    word="member",
    id_field="id",
    fields=(
        fixed("account", ACCOUNT_NAME, "the account"),
        fixed("user", Text(max_length=150), "the name that the person logs in with"),
        Field("role", Word(ROLES), "owner, member or viewer", is_required=True),
    ),
    filters={"account": "account", "user": "user__username", "role": "role"},
    id_help="ACCOUNT/USER",
    id_pattern="[^/]+/.+",
)
KEYS = Noun(
    path="keys",
    word="key",
    id_field="prefix",
    fields=(
        fixed("account", ACCOUNT_NAME, "who pays"),
        Field("name", Text(max_length=MAX_NAME_CHARS), "what it is for", placeholder="TEXT"),
        Field(
            "scopes",
            Names(),
            f"of {', '.join(scope.value for scope in Scope)} "
            f"(a new key: {','.join(DEFAULT_SCOPES)})",
        ),
        Field("models", Names(), "names of the catalogue, or aliases; empty: all"),
        Field("names_end_user", Flag(), "true: its clients are trusted to name their end user"),
        Field(
            "may_leave_network",
            Flag(),
            "false: its requests never go to upstreams outside your network",
        ),
        Field(
            "expires_at",
            Moment(),
            "30d, 12h, 2027-01-31 or never",
            flag="expires",
            placeholder="WHEN",
        ),
        *LIMITS,
        CAPTURE,
    ),
    filters={"account": "account", "status": ""},
    filter_help={"status": "only active, expired, disabled or revoked ones; several by commas"},
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
        Field("account", ACCOUNT_NAME, "the account that it caps, or", may_change=False),
        Field(
            "key",
            Text(max_length=16),
            "the key that it caps",
            flag="on-key",
            placeholder="PREFIX",
            may_change=False,
        ),
        fixed("unit", Word(UNITS), "tokens or micro_usd"),
        Field(
            "cap",
            Count(most=MAX_CAP, is_optional=False),
            "in the unit",
            placeholder="N",
            is_required=True,
        ),
        Field("window", Word(WINDOWS), "balance, day, month or seconds"),
        Field("window_s", Count(most=MAX_WINDOW_S), "of a window of seconds", placeholder="N"),
    ),
    filters={"account": "account", "key": "key", "unit": "unit", "window": "window"},
)
SERIES = Noun(
    path="series",
    word="series",
    id_field="name",
    filters=dict.fromkeys(("kind", "name", "range", "step"), ""),
    filter_help={
        "kind": f"{', '.join(Kind)}; without it the fleet",
        "name": "whose; a device's is NEURON/cuda:0, the fleet has none",
        "range": f"how far back: {', '.join(RANGES)}, or another time from 5m to 30d (3h)",
        "step": "in seconds; without it at most 200 points",
    },
)
REQUESTS = Noun(
    path="requests",
    word="request",
    id_field="id",
    fields=(Field("key", Text(max_length=100), flag="on-key"),),
    id_help="the x-request-id of its response",
    id_pattern="[0-9A-Za-z-]{1,64}",
    filters=dict.fromkeys(FILTERS, ""),
)
