"""The catalogue as a file: models.toml, in the format of the original system and our own keys.

    text ──read_document──▶ Document ──plan_import──▶ Plan ──services.catalogue_import──▶ rows
    rows ──selectors.catalogue_state──▶ CatalogueState ──write_document──▶ text

A document defines each model that it names completely: absent settings have their defaults. Pure.
"""

from fleet.models_toml.document import Document, WrittenModel, read_document
from fleet.models_toml.export import write_document
from fleet.models_toml.plan import Plan, plan_import
from fleet.models_toml.state import CatalogueState

__all__ = [
    "CatalogueState",
    "Document",
    "Plan",
    "WrittenModel",
    "plan_import",
    "read_document",
    "write_document",
]
