"""Keys of the fleet's REST API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fleet.api.api_support import Api, key_api, need_keys


@pytest.fixture(autouse=True)
def _needs_keys(settings: Any) -> None:
    need_keys(settings)


@pytest.fixture
def reader() -> Api:
    return key_api("fleet:read")


@pytest.fixture
def writer() -> Api:
    return key_api("fleet:read", "fleet:write")
