"""Clearing this process' cache of the catalogue when a row of it is written."""

from __future__ import annotations

from django.db import transaction

from fleet import selectors


def catalogue_changed() -> None:
    """Clears the cache now, for reads inside this transaction; and after the commit, because
    another thread may have read the old rows in between."""
    selectors.catalogue_cache_clear()
    transaction.on_commit(selectors.catalogue_cache_clear)
