"""Settings are read from the environment, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from helexa_site.config import read_config
from inference.settings.setting import SettingError
from tests.cases import each_case


@each_case(
    ("word", "wanted"), [("", False), ("0", False), ("off", False), ("1", True), ("Yes", True)]
)
def test_usage_of_every_stream_is_the_operators_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, wanted: bool
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HELEXA_ALWAYS_STREAM_USAGE", word)
    assert read_config().always_stream_usage is wanted


def test_what_becomes_of_unknown_fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    assert not read_config().ignores_unknown_fields
    for word, wanted in (("refuse", False), ("Ignore", True)):
        monkeypatch.setenv("HELEXA_UNKNOWN_FIELDS", word)
        assert read_config().ignores_unknown_fields is wanted
    monkeypatch.setenv("HELEXA_UNKNOWN_FIELDS", "yes")
    with pytest.raises(SettingError, match="HELEXA_UNKNOWN_FIELDS"):
        read_config()


def test_a_word_that_is_neither_yes_nor_no_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HELEXA_ALWAYS_STREAM_USAGE", "maybe")
    with pytest.raises(SettingError, match="HELEXA_ALWAYS_STREAM_USAGE"):
        read_config()


def test_origins_are_as_browsers_send_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    named = "https://chat.example.org, http://box:3000 chrome-extension://abc"
    monkeypatch.setenv("HELEXA_ALLOWED_ORIGINS", named)
    assert read_config().allowed_origins == tuple(named.replace(",", "").split())
    for wrong in ("chat.example.org", "https://chat.example.org/", "https://a/b"):
        monkeypatch.setenv("HELEXA_ALLOWED_ORIGINS", wrong)
        with pytest.raises(SettingError, match="HELEXA_ALLOWED_ORIGINS"):
            read_config()


def test_proxies_are_addresses_and_networks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    assert read_config().trusted_proxies == ()
    monkeypatch.setenv("HELEXA_TRUSTED_PROXIES", "127.0.0.1, 10.1.0.0/16 2001:db8::/32")
    assert [str(network) for network in read_config().trusted_proxies] == [
        "127.0.0.1/32",
        "10.1.0.0/16",
        "2001:db8::/32",
    ]
    for wrong in ("proxy.example.org", "10.1.0.1/16"):
        monkeypatch.setenv("HELEXA_TRUSTED_PROXIES", wrong)
        with pytest.raises(SettingError, match="HELEXA_TRUSTED_PROXIES"):
            read_config()


def test_the_hosts_that_answer_and_what_is_listened_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("HELEXA_LISTEN_HOST", raising=False)
    assert read_config().listen_host is None
    monkeypatch.setenv("HELEXA_LISTEN_HOST", "0.0.0.0")
    monkeypatch.setenv("HELEXA_ALLOWED_HOSTS", "chat.example.org")
    assert read_config().listen_host == "0.0.0.0"
    assert read_config().allowed_hosts == ("chat.example.org",)


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HELEXA_SECRET_KEY", "sesame, and long enough")
    monkeypatch.setenv("HELEXA_API_KEY", "sesame")
    monkeypatch.setenv("DATABASE_URL", "postgres://user:sesame@db/name")
    monkeypatch.setenv("REDIS_URL", "redis://:sesame@redis/0")
    assert "sesame" not in repr(read_config())
