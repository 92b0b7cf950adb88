"""The fleet's nouns whose fields operators set. Models are in ``fleet.catalogue.settings``."""

from __future__ import annotations

from fleet.catalogue.kinds import Text, Word
from fleet.live.desired_state import AdmissionPolicy
from fleet.nouns.field import Field
from fleet.nouns.noun import Noun

UUID_PATTERN = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

ALIASES = Noun(
    path="aliases",
    word="alias",
    id_field="name",
    fields=(
        Field(
            name="name",
            kind=Text(max_length=100),
            help="what clients may ask for",
            is_required=True,
            may_change=False,
        ),
        Field(
            name="model",
            kind=Text(max_length=100, is_required=True),
            help="the model of the catalogue that answers",
            is_required=True,
        ),
    ),
    filters=("model",),
)
INVITATIONS = Noun(
    path="invitations",
    word="invitation",
    id_field="neuron",
    fields=(
        Field(
            name="neuron",
            kind=Text(max_length=63, is_required=True),
            help="the neuron's name",
            is_required=True,
            may_change=False,
        ),
        Field(
            name="address",
            kind=Text(max_length=255),
            help="where that host reaches Redis, where it is not what serve --share has",
            placeholder="HOST:PORT",
            may_change=False,
        ),
    ),
)
POLICY = Noun(
    path="policy",
    word="policy",
    id_field="",
    fields=(
        Field(
            name="admission",
            kind=Word(tuple(policy.value for policy in AdmissionPolicy)),
            help="how an unknown neuron is admitted",
        ),
    ),
)
NEURONS = Noun(path="neurons", word="neuron", id_field="name", fields=(), filters=("status",))
MODELS = Noun(
    path="catalogue",
    word="model",
    id_field="name",
    fields=(),
    filters=("enabled", "pinned", "base", "source"),
)
JOBS = Noun(
    path="load-jobs",
    word="job",
    id_field="id",
    fields=(),
    id_help="as jobs list has it",
    id_pattern=UUID_PATTERN,
    filters=("kind", "status", "model", "neuron"),
)
DOWNLOADS = Noun(
    path="downloads",
    word="download",
    id_field="id",
    fields=(),
    id_help="as downloads list has it",
    id_pattern=UUID_PATTERN,
    filters=("kind", "status", "source", "neuron"),
)
SETTINGS = Noun(path="settings", word="setting", id_field="name", fields=())
AUDIT = Noun(
    path="audit",
    word="audit entry",
    id_field="id",
    fields=(),
    filters=("actor", "action", "object"),
)
