"""What an operator can set of each noun: one table of fields for REST bodies, commands and docs."""

from fleet.nouns.noun import Field, Noun

__all__ = ["Field", "Noun"]
