"""Settings are read from the environment, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from helexa_site.config import ConfigError, read_config


@pytest.mark.parametrize(
    ("word", "wanted"), [("", False), ("0", False), ("off", False), ("1", True), ("Yes", True)]
)
def test_usage_of_every_stream_is_the_operators_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, wanted: bool
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HELEXA_ALWAYS_STREAM_USAGE", word)
    assert read_config().always_stream_usage is wanted


def test_a_word_that_is_neither_yes_nor_no_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HELEXA_ALWAYS_STREAM_USAGE", "maybe")
    with pytest.raises(ConfigError, match="HELEXA_ALWAYS_STREAM_USAGE"):
        read_config()


def test_origins_are_as_browsers_send_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    named = "https://chat.example.org, http://box:3000 chrome-extension://abc"
    monkeypatch.setenv("HELEXA_ALLOWED_ORIGINS", named)
    assert read_config().allowed_origins == tuple(named.replace(",", "").split())
    for wrong in ("chat.example.org", "https://chat.example.org/", "https://a/b"):
        monkeypatch.setenv("HELEXA_ALLOWED_ORIGINS", wrong)
        with pytest.raises(ConfigError, match="HELEXA_ALLOWED_ORIGINS"):
            read_config()
