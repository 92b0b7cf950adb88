"""Imports the ACP SDK in half of its time, for an editor waits for it.

Most of ``import acp`` is pydantic's: it builds validators for 280 models, of which a session uses
some thirty, and reads the SDK's source to describe each field, which nobody asks for. Here models
are built when they are first used, and fields have no descriptions. Import this before the SDK.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pydantic


@contextlib.contextmanager
def _deferred_build() -> Iterator[None]:
    """Models inherit this setting when they are defined, and keep it."""
    pydantic.BaseModel.model_config["defer_build"] = True
    try:
        yield
    finally:
        del pydantic.BaseModel.model_config["defer_build"]


@contextlib.contextmanager
def _no_descriptions() -> Iterator[None]:
    """Pydantic has no setting for it. Where its inside is another one, the import takes longer."""
    try:
        from pydantic._internal import _fields
    except ImportError:
        yield
        return
    name = "_update_fields_from_docstrings"
    reads = getattr(_fields, name, None)
    if reads is None:
        yield
        return

    def leaves_them(*arguments: Any, **named: Any) -> None: ...

    setattr(_fields, name, leaves_them)
    try:
        yield
    finally:
        setattr(_fields, name, reads)


def import_sdk() -> None:
    collects = gc.isenabled()
    gc.disable()
    try:
        with _deferred_build(), _no_descriptions():
            import acp  # noqa: F401
    finally:
        if collects:
            gc.enable()


import_sdk()
