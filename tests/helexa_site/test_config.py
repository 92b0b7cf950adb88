"""Settings are read from the environment, or refused; and what follows for the database."""

from __future__ import annotations

from ipaddress import ip_network

import psycopg
import pytest

from helexa_site.config import read_config
from helexa_site.databases import POSTGRESQL_OPTIONS, database_settings
from inference.settings.setting import SettingError
from tests.cases import each_case

ORIGINS = "https://chat.example.org http://box:3000 chrome-extension://abc"


@each_case(
    ("name", "word", "field", "value"),
    [
        ("HELEXA_ALWAYS_STREAM_USAGE", "", "always_stream_usage", False),
        ("HELEXA_ALWAYS_STREAM_USAGE", "Yes", "always_stream_usage", True),
        ("HELEXA_UNKNOWN_FIELDS", "refuse", "ignores_unknown_fields", False),
        ("HELEXA_UNKNOWN_FIELDS", "Ignore", "ignores_unknown_fields", True),
        ("HELEXA_ALLOWED_ORIGINS", ORIGINS, "allowed_origins", tuple(ORIGINS.split())),
        ("HELEXA_ALLOWED_HOSTS", "chat.example.org", "allowed_hosts", ("chat.example.org",)),
        ("HELEXA_LISTEN_HOST", "", "listen_host", None),
        ("HELEXA_LISTEN_HOST", "0.0.0.0", "listen_host", "0.0.0.0"),
        ("HELEXA_TRUSTED_PROXIES", "", "trusted_proxies", ()),
        (
            "HELEXA_TRUSTED_PROXIES",
            "127.0.0.1, 10.1.0.0/16 2001:db8::/32",
            "trusted_proxies",
            tuple(ip_network(one) for one in ("127.0.0.1/32", "10.1.0.0/16", "2001:db8::/32")),
        ),
    ],
)
def test_what_a_setting_means(name: str, word: str, field: str, value: object) -> None:
    assert getattr(read_config({name: word}), field) == value


def test_no_secret_is_shown() -> None:
    secrets = {
        "HELEXA_SECRET_KEY": "sesame, and long enough",
        "HELEXA_API_KEY": "sesame",
        "DATABASE_URL": "postgres://user:sesame@db/name",
        "REDIS_URL": "redis://:sesame@redis/0",
    }
    assert "sesame" not in repr(read_config(secrets))


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
    ],
)
def test_where_metrics_are_served(word: str | None, found: str) -> None:
    set_to = {} if word is None else {"HELEXA_METRICS_LISTEN": word}
    assert str(read_config(set_to).metrics.at("192.0.2.7")) == found


def test_a_database_is_given_up_soon_unless_its_url_says_otherwise() -> None:
    settings = database_settings("postgres://user:word@db.example/helexa")
    assert settings["OPTIONS"] == POSTGRESQL_OPTIONS
    assert settings["CONN_HEALTH_CHECKS"] is True
    assert psycopg.conninfo.make_conninfo("host=db.example", **POSTGRESQL_OPTIONS)
    own = database_settings("postgres://db.example/x?tcp_user_timeout=3000&sslmode=require")
    changed = {"tcp_user_timeout": 3000, "sslmode": "require"}
    assert own["OPTIONS"] == POSTGRESQL_OPTIONS | changed
    assert database_settings("sqlite:////tmp/helexa.sqlite3")["OPTIONS"]["timeout"] == 20


@each_case(
    "url",
    ["helexa", "/var/lib/helexa.sqlite3", "mysql://user:sesame@db/helexa", "postgres://db:port/x"],
)
def test_another_databases_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(SettingError, match="DATABASE_URL") as refused:
        database_settings(url)
    assert "sesame" not in str(refused.value)
