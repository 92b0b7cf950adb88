"""Cases of one test of which a few run every time, and all in the slow part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *every_time: Any) -> list[Any]:
    """Returns the values for ``parametrize``; slow are those that are not among ``every_time``.
    Raises ``ValueError`` where one of these is no value of the test."""
    found = list(values)
    if unknown := [one for one in every_time if one not in found]:
        raise ValueError(f"no case of the test: {unknown}")
    return [
        one if one in every_time else pytest.param(one, marks=pytest.mark.slow) for one in found
    ]
