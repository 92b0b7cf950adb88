"""Imports the ACP SDK in a fifth of its time, for an editor waits for it.

Most of ``import acp`` is pydantic's: it makes 280 models, of which a session uses some forty, and
builds their validators. Here models are made when they are first used, nothing is traced, and no
plugins of pydantic are looked for among all that is installed. Import this before the SDK.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any, cast

import pydantic

from helexa_acp.sdk import lazy_models

NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
TRACING = "opentelemetry"


@contextlib.contextmanager
def _deferred_adapters() -> Iterator[None]:
    """The SDK makes two as it is imported, of many models."""
    package = cast(Any, pydantic)
    adapter = package.TypeAdapter
    deferred = pydantic.ConfigDict(defer_build=True)
    package.TypeAdapter = functools.partial(adapter, config=deferred)
    try:
        yield
    finally:
        package.TypeAdapter = adapter


@contextlib.contextmanager
def _no_plugins() -> Iterator[None]:
    """Plugins are searched once. The setting is not passed to child processes."""
    before = os.environ.get(NO_PLUGINS)
    os.environ[NO_PLUGINS] = before or "__all__"
    try:
        with contextlib.suppress(ImportError):
            from pydantic.plugin._loader import get_plugins

            get_plugins()
        yield
    finally:
        if before is None:
            del os.environ[NO_PLUGINS]


@contextlib.contextmanager
def _no_tracing() -> Iterator[None]:
    """The SDK does without where there is no OpenTelemetry, which takes long to import."""
    if TRACING in sys.modules:
        yield
        return
    sys.modules[TRACING] = cast(Any, None)
    try:
        yield
    finally:
        del sys.modules[TRACING]


def import_sdk() -> None:
    lazy_models.install()
    with _no_plugins(), _no_tracing(), _deferred_adapters():
        import acp  # noqa: F401


import_sdk()
