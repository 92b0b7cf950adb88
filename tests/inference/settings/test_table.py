"""The table of settings: complete, documented, and right about each setting's values, by some
that are accepted and some just outside of that."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helexa_site.config import SETTINGS as SITE_SETTINGS
from helexa_site.config import Config
from inference.settings import gateway, installation, neuron, storage
from inference.settings import setting as kinds
from inference.settings.table import NAMES, SETTINGS, check_settings, refusals, unknown_names
from tests.cases import each_case

NO_NUMBERS = ("never", "zero", "1,5", "1_000", "²", "٣", "0x10", "--1", "1 000", "nan", "inf", "1e")
URLS = ("host", "gopher://host", "redis:/", "http:/", "://", "http://a b", "postgres://a b")
SAMPLES: dict[kinds.Form[Any], tuple[tuple[str, ...], tuple[str, ...]]] = {
    kinds.FLAG: (("1", "0", "true", "No", "ON", " off "), ("maybe", "2", "-1", "truee", "1 0")),
    kinds.LOG_LEVELS: (
        ("info", "DEBUG", "error,a.b=debug", "inference.neuron=info"),
        ("loud", "info,debug", "a=", "=info", "info;a=debug", "a=info,a=debug"),
    ),
    kinds.FILE_PATH: (("/srv/helexa", "relative/path", "with blanks/ü"), ()),
    kinds.COMMAND: (
        ("numactl --cpunodebind 0 python -m inference.engine", "'a b' c"),
        ("python 'unclosed",),
    ),
    kinds.PYTHON_NAME: (
        ("package.module:name", " module:Class.method "),
        ("module", "module:", ":name", "a:b:c", "mod ule:name", "1:name", "a:ü"),
    ),
    kinds.NETWORKS: (
        ("127.0.0.1, 10.1.0.0/16 2001:db8::/32", "0.0.0.0/0"),
        ("proxy.example.org", "10.1.0.1/16", "10.1.0.0/33", "127.0.0.1 x"),
    ),
    kinds.WEB_ORIGIN: (
        ("https://chat.example.org", "http://[::1]:31313/", "https://box:8443"),
        ("chat.example.org", "https://a/b", "https://*.example.org", "https://a:99999"),
    ),
    kinds.URL_OR_OFF: (
        ("off", "no", "https://wheels.example.org/cpu/"),
        ("wheels.example.org", "ftp://wheels.example.org", "https://"),
    ),
    gateway.LONG_SECRET: (("x" * 16, "x" * 4096), ("x" * 15, "x", f" {'x' * 14} ")),
    gateway.HOST_NAMES: (
        ("*", ".example.org", "chat.example.org, 10.0.0.5 [::1]"),
        (
            *("chat.example.org/path", "https://chat.example.org", "chat.example.org:443"),
            *("chat.example.org a/b", "::1", "über.example.org", "a@b"),
        ),
    ),
    gateway.ORIGINS: (
        ("*", "https://chat.example.org", "http://box:3000 chrome-extension://abc"),
        ("chat.example.org", "https://chat.example.org/", "https://a/b", "https://a?b"),
    ),
    gateway.WEB_ORIGINS: (
        ("https://chat.example.org", "https://*.example.org http://[::1]:31313"),
        ("chat.example.org", "*", "https://chat.example.org/", "ftp://chat.example.org"),
    ),
    gateway.IMAGE_HOST_LIST: (
        ("*", "images.example.org", "*.example.org 10.0.0.5:8080 Images.example.ORG"),
        ("https://images.example.org", "images.example.org/path", "a:b:c"),
    ),
    gateway.METRICS_ADDRESS: (
        ("off", ":1", "65535", "10.0.0.5", "[::1]:9100", "box:9100"),
        (":0", ":65536", "a:b", "http://box:9100", "box:9100/metrics"),
    ),
    gateway.COLLECTOR: (("http://host/0", "https://host:4318"), (*URLS, "http://host:0")),
    gateway.TRACES: (("http://host/0", "https://host:4318/v1/traces"), URLS),
    installation.SERVER: (("http://host/0", "https://h"), URLS),
    storage.DATABASE: (("sqlite:////0", "postgres://host/0", "postgresql://h", "pgsql://h"), URLS),
    storage.REDIS: (("redis://host/0", "rediss://host", "unix:///run/redis"), URLS),
    storage.VARIABLES: (
        ("PEER_API_KEY", "HELEXA_API_KEY, peers_word OTHER_KEY2", "DATABASE_URL_OF_A_PEER"),
        ("sk-a-key", "2X", "PEER_API_KEY=sk", "DATABASE_URL", "PEER_API_KEY HELEXA_SECRET_KEY"),
    ),
    storage.SOURCE_LIST: (
        (
            "helexa=https://hub.example.org",
            " helexa=https://hub.example.org/models/ token=HUB_TOKEN cache=/srv/hub default",
            "lab-2=http://lab:8080,helexa=https://[::1]:8443 token=my_token",
        ),
        (
            *("helexa", "helexa=", "=https://hub", "https://hub", "helexa=hub.example.org"),
            *("helexa=ftp://hub", "helexa=https://u:p@hub", "helexa=https://hub?x=1"),
            *("helexa=https://hub:99999", "Helexa=https://hub", "2x=https://h", "a=https://b,"),
            *("huggingface=https://hub", "pypi=https://hub", "path=https://hub"),
            *("upstream=https://hub", "a=https://b,a=https://c", "a=https://b extra"),
            *("a=https://b token=", "a=https://b token=x-y", "a=https://b token=REDIS_URL"),
            *("a=https://b cache=hub", "a=https://b cache=/x cache=/y", "a=https://b c=red"),
            *("a=https://b default,c=https://d default", "a=https://b token=DATABASE_URL"),
            *("a=https://b token=HELEXA_SECRET_KEY", "a=https://b token=HF_TOKEN"),
        ),
    ),
    neuron.ACCOUNTS: (("all", "acme", " acme, other "), (",", " , ,")),
    neuron.DEVICE_MEMORY: (
        ("cpu=6GiB", " cpu = 1MiB , cuda:0=20.5GB,cuda:15=1 TiB"),
        (
            *("6GiB", "cpu=", "cpu", "cpu=6", "cpu=6gib", "cpu=-1GiB", "cpu=0GiB", "cpu=1.GiB"),
            *("cuda=6GiB", "cuda:01=6GiB", "cuda:-1=6GiB", "gpu:0=6GiB", "cpu=6GiB,"),
            *("cpu=1GiB,cpu=2GiB", "cpu=9000TiB", "cpu=6GiB;cuda:0=1GiB", "cpu=0.5MiB"),
        ),
    ),
    neuron.STAGE_ADDRESS: (
        ("10.0.0.5", " box.lan:7400 ", "[2001:db8::5]:7400-7499", "127.0.0.1:1-65535"),
        (
            *("0.0.0.0", "[::]:7400", ":7400", "a b", "10.0.0.5:", "10.0.0.5:0"),
            *("10.0.0.5:7400-", "10.0.0.5:7499-7400", "10.0.0.5:65536", "http://10.0.0.5"),
        ),
    ),
}


def samples(setting: kinds.Setting[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Accepted values, its least and its greatest among them, and refused ones."""
    rule = setting.kind.rule
    if bounds := re.fullmatch(r"a whole number of .* from (\d+) to (\d+)", rule):
        least, greatest = bounds.groups()
        outside = (str(int(least) - 1), str(int(greatest) + 1), "1.5", "9" * 5000)
        return (least, greatest, f" {least} ", f"+{greatest}"), outside + NO_NUMBERS
    if bounds := re.fullmatch(r"a number of .* from (\S+) to (\S+)", rule):
        low, high = map(float, bounds.groups())
        beyond = (math.nextafter(low, -math.inf), math.nextafter(high, math.inf))
        inside = (f"{low:.17g}", f"{high:.17g}", f"{high / 2:.17g}", f"{high:e}")
        return inside, (*(f"{one:.17g}" for one in beyond), "1e999", "-1", *NO_NUMBERS)
    if setting.kind in SAMPLES:
        return SAMPLES[setting.kind]
    if isinstance(setting.default, str):  # one of its words
        words = rule.split(" or ")
        return (*words, words[-1].upper()), ("other", f"{words[0]}x", "1")
    return ("x", "x" * 4096), ()  # any text


ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("helexa_site", "fleet", "inference", "metering")
READ = re.compile(r"""environ(ment)?(\.get\(|\[)["'](HELEXA|REDIS|DATABASE)_\w+["'](?!\] =)""")
MODULES = (storage, gateway, neuron, installation)
OF_LIBRARIES = {
    *("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "CC", "CXX"),
    *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_PROTOCOL"),
}
"""Read by those libraries, or by all who start a compiler."""


def test_every_setting_is_read_through_the_table_and_no_variable_beside_it() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    code = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    code = {path: text for path, text in code.items() if "inference/settings/" not in path}
    # It restores a database that the variable has to name.
    assert {path for path, text in code.items() if READ.search(text)} == {"helexa_site/backup.py"}
    constants = {
        value.name: name
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, kinds.Setting)
    }
    assert constants.keys() == NAMES, "a module of settings is not in the table"
    used = {word for text in code.values() for word in re.findall(r"\b([A-Z_]+)\.", text)}
    used |= {field.name.upper() for field in fields(Config) if field.name in SITE_SETTINGS}
    unused = {name for name, constant in constants.items() if constant not in used}
    assert unused == OF_LIBRARIES


def test_the_page_has_each_setting_that_is_none_of_the_programs_own() -> None:
    rows = kinds.page_rows()
    shown = [setting.name for setting in SETTINGS if not setting.is_internal]
    assert len(NAMES) == len(SETTINGS) and list(rows) == shown
    assert rows["HELEXA_MAX_IMAGES"].readers == "gateway"
    assert rows["HELEXA_DRAIN_SECONDS"].readers == "serve, gateway"
    assert rows["HELEXA_MAX_IMAGES"].default == "100"


@each_case("setting", SETTINGS, ids=lambda setting: setting.name)
def test_values_are_accepted_or_refused_by_name_and_rule(setting: kinds.Setting[Any]) -> None:
    accepted, refused = samples(setting)
    assert setting.read({}) == setting.default
    for word in accepted:
        check_settings({setting.name: word})
    for word in refused:
        (error,) = refusals({setting.name: word})
        assert str(error).startswith(setting.name) and setting.kind.rule in str(error)
        assert "\n" not in str(error)
        if setting.is_secret:
            assert str(error) == f"{setting.name} is not {setting.kind.rule}"
        with pytest.raises(kinds.SettingError, match=setting.name):
            check_settings({setting.name: word})


@each_case(
    ("setting", "word", "value"),
    [
        (gateway.ALLOW_ANONYMOUS, " Off ", False),
        (gateway.MAX_IMAGES, "+7", 7),
        (gateway.UNKNOWN_FIELDS, " IGNORE ", "ignore"),
        (gateway.IMAGE_HOSTS, "A.example.org, *.b", ("a.example.org", "*.b")),
        (gateway.PUBLIC_URL, "https://Chat.example.org/", "https://chat.example.org"),
        (gateway.METRICS_LISTEN, "9100", gateway.MetricsListen(port=9100)),
        (gateway.METRICS_LISTEN, "[::1]:9100", gateway.MetricsListen(host="::1", port=9100)),
        (gateway.METRICS_LISTEN, "", gateway.METRICS_OFF),
        (gateway.MAX_IMAGES, " ", 100),
        (installation.TORCH_CPU_INDEX, "", None),
        (installation.TORCH_CPU_INDEX, "https://a/cpu/", "https://a/cpu"),
        (neuron.STEP_TIMEOUT_S, "1.5e1", 15.0),
        (neuron.ENGINE_COMMAND, "a 'b c'", ("a", "b c")),
        (neuron.STAGE_LISTEN, "[::1]:7400-7401", neuron.StageListen("::1", 7400, 7401)),
        (neuron.MEMORY_LIMIT, "cpu=1.5MiB", neuron.MemoryLimits((("cpu", 3 * 2**19),))),
        (neuron.LOG_BODIES, "a, b", neuron.LoggedBodies(frozenset("ab"))),
        (
            storage.SOURCES,
            "lab=http://lab/ token=T cache=/x default",
            storage.NamedSources(
                (storage.NamedSource("lab", "http://lab", "T", Path("/x")),), "lab"
            ),
        ),
    ],
    ids=str,
)
def test_words_are_read_as(setting: kinds.Setting[Any], word: str, value: object) -> None:
    found: Any = setting.read({setting.name: word})
    assert found == value
    if isinstance(found, neuron.StageListen):
        assert list(found.ports) == [7400, 7401]
        listens = [neuron.StageListen("box", *ports) for ports in ((), (7,))]
        assert [list(one.ports) for one in listens] == [[0], [7]]
    if isinstance(found, neuron.LoggedBodies):
        named = [found, neuron.LoggedBodies({"all"}), neuron.LoggedBodies({"all", "b"})]
        assert [one.include("a") for one in named] == [True, True, False]
        assert str(found) == "a, b"


def test_secrets_are_known_to_be_some() -> None:
    assert {setting.name for setting in SETTINGS if setting.is_secret} == {
        *("DATABASE_URL", "REDIS_URL", "HF_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"),
        *("HELEXA_API_KEY", "HELEXA_SECRET_KEY", "HELEXA_SERVE_KEY"),
    }


@given(st.text(), st.sampled_from(SETTINGS))
def test_any_text_is_read_or_refused(text: str, setting: kinds.Setting[Any]) -> None:
    for error in refusals({setting.name: text}):
        assert setting.name in str(error)


def test_an_unknown_name_comes_with_the_nearest_one() -> None:
    environment = {
        "HELEXA_MAX_BODY_BYTE": "1",
        "HELEXA_COLOUR": "red",
        "HELEXA_ACP_MODEL": "tiny",
        "HELEXA_URL": "http://box",
        "PATH": "/bin",
    }
    assert list(unknown_names(environment)) == [
        ("HELEXA_COLOUR", None),
        ("HELEXA_MAX_BODY_BYTE", "HELEXA_MAX_BODY_BYTES"),
    ]
