"""The catalogue as a file: models.toml, in the format of the original system and our own keys.

    text ──read_document──▶ Document ──plan_import──▶ Plan ──services.catalogue_import──▶ rows
    rows ──selectors.catalogue_state──▶ CatalogueState ──write_document──▶ text

A document defines each model that it names completely: absent settings have their defaults. Pure.
"""

from fleet.models_toml.plan import CatalogueState, Plan, plan_import, write_document
from fleet.models_toml.reading import Document, ModelsTomlError, WrittenModel, read_document

__all__ = [
    "CatalogueState",
    "Document",
    "ModelsTomlError",
    "Plan",
    "WrittenModel",
    "plan_import",
    "read_document",
    "write_document",
]
