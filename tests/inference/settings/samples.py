"""Values of settings by kind: some that are accepted and some just outside of that."""

from __future__ import annotations

import math
from typing import Any

from inference.settings import gateway, installation, kinds, neuron, storage
from inference.settings.kinds import Decimal, WholeNumber
from inference.settings.setting import Kind, Setting

NO_NUMBERS = ("never", "zero", "1,5", "1_000", "²", "٣", "0x10", "--1", "1 000", "nan", "inf", "1e")
URLS = ("host", "gopher://host", "redis:/", "http:/", "://", "http://a b", "postgres://a b")
SAMPLES: dict[Kind[Any], tuple[tuple[str, ...], tuple[str, ...]]] = {
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


def samples(setting: Setting[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Accepted values, its least and its greatest among them, and refused ones."""
    match setting.kind:
        case WholeNumber(minimum=least, maximum=greatest):
            outside = (str(least - 1), str(greatest + 1), "1.5", "9" * 5000)
            return (str(least), str(greatest), f" {least} ", f"+{greatest}"), outside + NO_NUMBERS
        case Decimal(minimum=least, maximum=greatest):
            beyond = (math.nextafter(least, -math.inf), math.nextafter(greatest, math.inf))
            inside = (f"{least:.17g}", f"{greatest:.17g}", f"{greatest / 2:.17g}", f"{greatest:e}")
            return inside, (*(f"{one:.17g}" for one in beyond), "1e999", "-1", *NO_NUMBERS)
    if setting.kind in SAMPLES:
        return SAMPLES[setting.kind]
    if isinstance(setting.default, str):  # one of its words
        words = setting.kind.rule.split(" or ")
        return (*words, words[-1].upper()), ("other", f"{words[0]}x", "1")
    return ("x", "x" * 4096), ()  # any text
