"""``TensorFiles`` under the names that the model asks for, without what it does not compute with.

A checkpoint of a text model beside a tower for pictures nests the text model's names, and brings
tensors of its own. What is left out is known by the family and counted, so that a load says it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import torch

from inference.loading.errors import MissingTensorError
from inference.loading.tensor_files import TensorFiles
from inference.models.families.family import Family
from inference.models.stored import StoredWeight


class NamedFiles:
    def __init__(self, files: TensorFiles, family: Family) -> None:
        self._files = files
        self._own_names: dict[str, str] = {}
        """Name that the model asks for -> name in the files."""
        self._num_left_out: Counter[str] = Counter()
        for name in files.names:
            if (purpose := _purpose_left_out(name, family)) is not None:
                self._num_left_out[purpose] += 1
            else:
                self._own_names[family.hub_name(name)] = name

    @property
    def left_out(self) -> str:
        """For people; empty where everything is computed with."""
        counts = sorted(self._num_left_out.items())
        return ", ".join(f"{count} tensors of {purpose} left out" for purpose, count in counts)

    @property
    def names(self) -> Collection[str]:
        return self._own_names.keys()

    def dense(self, name: str) -> torch.Tensor:
        return self._files.dense(self._find(name))

    def stored(self, name: str) -> StoredWeight:
        return self._files.stored(self._find(name))

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        return self._files.stored_rows(self._find(name), first, last)

    def format_of(self, name: str) -> str:
        return self._files.format_of(self._find(name))

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._files.shape_of(self._find(name))

    def bytes_of(self, name: str) -> int:
        return self._files.bytes_of(self._find(name))

    def close(self) -> None:
        self._files.close()

    def _find(self, name: str) -> str:
        try:
            return self._own_names[name]
        except KeyError:
            raise MissingTensorError(f"the weight files have no tensor for {name}") from None


def _purpose_left_out(name: str, family: Family) -> str | None:
    found = (words for start, words in family.left_out.items() if name.startswith(start))
    return next(found, None)
