"""Problems of a models.toml: their place and message."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.errors import FleetError


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    message: str
    line: int | None = None
    entry: str = ""
    """The model's id, or ``[aliases]``; empty for the file as a whole."""
    key: str = ""

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line is not None else []
        where += [part for part in (self.entry, self.key) if part]
        return f"{', '.join(where)}: {self.message}" if where else self.message


class ModelsTomlError(FleetError):
    """Nothing of the file is used. ``problems`` are all that were found."""

    http_status = 400
    code = "invalid_models_toml"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
