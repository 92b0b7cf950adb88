import psycopg
import pytest

from helexa_site.databases import POSTGRESQL_OPTIONS, database_settings
from inference.settings.setting import SettingError
from tests.cases import each_case


def test_postgresql_is_given_up_soon_where_the_network_hides_it() -> None:
    settings = database_settings("postgres://user:word@db.example/helexa")
    assert settings["OPTIONS"] == POSTGRESQL_OPTIONS
    assert settings["CONN_HEALTH_CHECKS"] is True


def test_values_in_the_url_take_precedence() -> None:
    settings = database_settings(
        "postgres://db.example/helexa?tcp_user_timeout=3000&sslmode=require"
    )
    assert settings["OPTIONS"] == POSTGRESQL_OPTIONS | {
        "tcp_user_timeout": 3000,
        "sslmode": "require",
    }


def test_libpq_knows_every_option() -> None:
    assert psycopg.conninfo.make_conninfo("host=db.example", **POSTGRESQL_OPTIONS)


def test_sqlite_waits_for_its_lock() -> None:
    assert database_settings("sqlite:////tmp/helexa.sqlite3")["OPTIONS"]["timeout"] == 20


@each_case(
    "url",
    ["helexa", "/var/lib/helexa.sqlite3", "mysql://user:sesame@db/helexa", "postgres://db:port/x"],
)
def test_another_databases_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(SettingError, match="DATABASE_URL") as refused:
        database_settings(url)
    assert "sesame" not in str(refused.value)
