"""Where metrics are served, as operators write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from helexa_site.config import read_config
from inference.settings.gateway import MetricsListenError, parse_metrics_listen
from inference.settings.setting import SettingError
from tests.cases import each_case


@each_case(
    ("word", "found"),
    [
        (None, "192.0.2.7:31314"),
        ("9100", "192.0.2.7:9100"),
        (":9100", "192.0.2.7:9100"),
        ("10.0.0.5", "10.0.0.5:31314"),
        ("10.0.0.5:9100", "10.0.0.5:9100"),
        ("metrics.example.org:9100", "metrics.example.org:9100"),
        ("[::1]:9100", "[::1]:9100"),
        ("[::1]", "[::1]:31314"),
        (" 127.0.0.1:1 ", "127.0.0.1:1"),
        ("", "None"),
        ("off", "None"),
        ("OFF", "None"),
    ],
)
def test_each_setting_and_what_it_means(word: str | None, found: str) -> None:
    assert str(parse_metrics_listen(word).at("192.0.2.7")) == found


@each_case("word", ["::1", "::1:9100", "a b:1", ":0", ":65536", "http://x:1", "x:y"])
def test_what_it_cannot_be(word: str) -> None:
    with pytest.raises(MetricsListenError):
        parse_metrics_listen(word)


def test_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("HELEXA_METRICS_LISTEN")
    assert str(read_config().metrics.at("127.0.0.1")) == "127.0.0.1:31314"
    monkeypatch.setenv("HELEXA_METRICS_LISTEN", ":9")
    assert str(read_config().metrics.at("0.0.0.0")) == "0.0.0.0:9"
    monkeypatch.setenv("HELEXA_METRICS_LISTEN", "everywhere:please")
    with pytest.raises(SettingError, match="HELEXA_METRICS_LISTEN"):
        read_config()
