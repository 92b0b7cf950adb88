"""The fleet's nouns with fields that operators set. Models are in ``fleet.catalogue.settings``."""

from __future__ import annotations

from fleet.catalogue.kinds import Count, Flag, Text, Word
from fleet.live.desired_state import AdmissionPolicy
from fleet.noun import Field, Noun, fixed
from fleet.upstreams import MAX_CONCURRENCY, MAX_SECRET_LENGTH, MAX_TIMEOUT_S

UUID_PATTERN = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

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
