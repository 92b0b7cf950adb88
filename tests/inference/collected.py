"""Models that fall asleep in a test's process: garbage is collected among what tests made alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from inference.engine.load import sleeper


@pytest.fixture(scope="session", autouse=True)
def _what_was_imported_is_not_collected() -> Iterator[None]:
    """An engine looks through all that it keeps when it falls asleep, its imports too. A test
    process keeps every collected test as well, some million objects and a second's work each time,
    and made its models after those were exempted. ``test_processes.py`` runs it unchanged, in a
    process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sleeper, "collect_all", gc.collect)
        yield
