"""What an operator can set of each noun: one table of fields for REST bodies, commands and docs."""

from fleet.nouns.field import Field
from fleet.nouns.noun import Noun

__all__ = ["Field", "Noun"]
