from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_cache_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "HF_TOKEN", "HELEXA_HF_CACHE"):
        monkeypatch.delenv(name, raising=False)
