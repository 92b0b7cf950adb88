"""The lines that a benchmark on a card prints: a figure each, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a benchmark; without a figure, ``result`` is ``unmeasured`` or ``failed`` with
    the reason."""

    what: str
    result: str

    def __str__(self) -> str:
        return f"{self.what:<52} {self.result}"


class UnmeasurableError(Exception):
    """This torch cannot do what a row measures; the message is the reason."""


def measured(what: str, measure: Callable[[], str]) -> Row:
    """Returns the row of a measurement. Without a card, or where the card or this torch cannot do
    it, the row reports that."""
    if not torch.cuda.is_available():
        return Row(what, "unmeasured: no CUDA device")
    try:
        return Row(what, measure())
    except UnmeasurableError as error:
        return Row(what, f"unmeasured: {error}")
    except Exception as error:  # noqa: BLE001 - this is the loop's boundary: other rows follow
        reason = str(error).partition("\n")[0]
        return Row(what, f"failed: {type(error).__name__}: {reason}")


@torch.inference_mode()
def print_rows(rows: Iterable[Row]) -> None:
    """Each as soon as it is measured."""
    for row in rows:
        print(row, flush=True)
