"""Values for settings of each kind: some that are accepted and some just outside of that."""

from __future__ import annotations

import math
from typing import Any

from inference.settings.gateway import (
    ALLOWED_HOSTS,
    ALLOWED_ORIGINS,
    CSRF_TRUSTED_ORIGINS,
    IMAGE_HOSTS,
    MetricsAddress,
)
from inference.settings.kinds import (
    Choice,
    Command,
    Decimal,
    FilePath,
    Flag,
    LogLevels,
    Networks,
    PythonName,
    Text,
    Url,
    UrlOrOff,
    WebOrigin,
    WholeNumber,
    WordList,
)
from inference.settings.neuron import Accounts, DeviceMemory, StageAddress
from inference.settings.setting import Setting
from inference.settings.storage import BENCH_VARIABLES, SourceList

NO_NUMBERS = ("never", "zero", "1,5", "1_000", "²", "٣", "0x10", "--1", "1 000", "nan", "inf", "1e")
LISTS = {
    ALLOWED_HOSTS.name: (
        ("*", ".example.org", "chat.example.org, 10.0.0.5 [::1]"),
        (
            *("chat.example.org/path", "https://chat.example.org", "chat.example.org:443"),
            *("chat.example.org a/b", "::1", "über.example.org", "a@b"),
        ),
    ),
    ALLOWED_ORIGINS.name: (
        ("*", "https://chat.example.org", "http://box:3000 chrome-extension://abc"),
        ("chat.example.org", "https://chat.example.org/", "https://a/b", "https://a?b"),
    ),
    CSRF_TRUSTED_ORIGINS.name: (
        ("https://chat.example.org", "https://*.example.org http://[::1]:31313"),
        ("chat.example.org", "*", "https://chat.example.org/", "ftp://chat.example.org"),
    ),
    IMAGE_HOSTS.name: (
        ("*", "images.example.org", "*.example.org 10.0.0.5:8080 Images.example.ORG"),
        ("https://images.example.org", "images.example.org/path", "a:b:c"),
    ),
    BENCH_VARIABLES.name: (
        ("PEER_API_KEY", "HELEXA_API_KEY, peers_word OTHER_KEY2", "DATABASE_URL_OF_A_PEER"),
        ("sk-a-key", "2X", "PEER_API_KEY=sk", "DATABASE_URL", "PEER_API_KEY HELEXA_SECRET_KEY"),
    ),
}


def accepted(setting: Setting[Any]) -> tuple[str, ...]:
    """Its least and its greatest value, and others of every form."""
    match setting.kind:
        case WholeNumber(minimum=least, maximum=greatest):
            return (str(least), str(greatest), f" {least} ", f"+{greatest}")
        case Decimal(minimum=least, maximum=greatest):
            return (f"{least:.17g}", f"{greatest:.17g}", f"{greatest / 2:.17g}", f"{greatest:e}")
        case Flag():
            return ("1", "0", "true", "No", "ON", " off ")
        case Choice(words=words):
            return (*words, words[-1].upper())
        case LogLevels():
            return ("info", "DEBUG", "error,a.b=debug", "inference.neuron=info")
        case Accounts():
            return ("all", "acme", " acme, other ")
        case Text(min_characters=least):
            return ("x" * max(1, least), "x" * 4096)
        case FilePath():
            return ("/srv/helexa", "relative/path", "with blanks/ü")
        case Command():
            return ("numactl --cpunodebind 0 python -m inference.engine", "'a b' c")
        case PythonName():
            return ("package.module:name", " module:Class.method ")
        case WordList():
            return LISTS[setting.name][0]
        case Networks():
            return ("127.0.0.1, 10.1.0.0/16 2001:db8::/32", "0.0.0.0/0")
        case Url(schemes=schemes):
            return tuple(f"{scheme}://host/0" for scheme in schemes)
        case WebOrigin():
            return ("https://chat.example.org", "http://[::1]:31313/", "https://box:8443")
        case UrlOrOff():
            return ("off", "no", "https://wheels.example.org/cpu/")
        case DeviceMemory():
            return ("cpu=6GiB", " cpu = 1MiB , cuda:0=20.5GB,cuda:15=1 TiB")
        case StageAddress():
            return ("10.0.0.5", " box.lan:7400 ", "[2001:db8::5]:7400-7499", "127.0.0.1:1-65535")
        case SourceList():
            return (
                "helexa=https://hub.example.org",
                " helexa=https://hub.example.org/models/ token=HUB_TOKEN cache=/srv/hub default",
                "lab-2=http://lab:8080,helexa=https://[::1]:8443 token=my_token",
            )
        case MetricsAddress():
            return ("off", ":1", "65535", "10.0.0.5", "[::1]:9100", "box:9100")
    raise AssertionError(f"no samples for {setting.kind}")


def refused(setting: Setting[Any]) -> tuple[str, ...]:
    """Values just outside of its bounds, and of other types."""
    match setting.kind:
        case WholeNumber(minimum=least, maximum=greatest):
            return (str(least - 1), str(greatest + 1), "1.5", "9" * 5000, *NO_NUMBERS)
        case Decimal(minimum=least, maximum=greatest):
            below = math.nextafter(least, -math.inf)
            above = math.nextafter(greatest, math.inf)
            return (f"{below:.17g}", f"{above:.17g}", "1e999", "-1", *NO_NUMBERS)
        case Flag():
            return ("maybe", "2", "-1", "truee", "1 0")
        case Choice(words=words):
            return ("other", f"{words[0]}x", "1")
        case LogLevels():
            return ("loud", "info,debug", "a=", "=info", "info;a=debug", "a=info,a=debug")
        case Accounts():
            return (",", " , ,")
        case Text(min_characters=least):
            return ("x" * (least - 1), "x", f" {'x' * (least - 2)} ") if least else ()
        case FilePath():
            return ()
        case Command():
            return ("python 'unclosed",)
        case PythonName():
            return ("module", "module:", ":name", "a:b:c", "mod ule:name", "1:name", "a:ü")
        case WordList():
            return LISTS[setting.name][1]
        case Networks():
            return ("proxy.example.org", "10.1.0.1/16", "10.1.0.0/33", "127.0.0.1 x")
        case Url(schemes=schemes):
            return ("host", "gopher://host", f"{schemes[0]}:/", "://", f"{schemes[0]}://a b")
        case WebOrigin():
            return ("chat.example.org", "https://a/b", "https://*.example.org", "https://a:99999")
        case UrlOrOff():
            return ("wheels.example.org", "ftp://wheels.example.org", "https://")
        case StageAddress():
            return (
                *("0.0.0.0", "[::]:7400", ":7400", "a b", "10.0.0.5:", "10.0.0.5:0"),
                *("10.0.0.5:7400-", "10.0.0.5:7499-7400", "10.0.0.5:65536", "http://10.0.0.5"),
            )
        case DeviceMemory():
            return (
                *("6GiB", "cpu=", "cpu", "cpu=6", "cpu=6gib", "cpu=-1GiB", "cpu=0GiB", "cpu=1.GiB"),
                *("cuda=6GiB", "cuda:01=6GiB", "cuda:-1=6GiB", "gpu:0=6GiB", "cpu=6GiB,"),
                *("cpu=1GiB,cpu=2GiB", "cpu=9000TiB", "cpu=6GiB;cuda:0=1GiB", "cpu=0.5MiB"),
            )
        case SourceList():
            return (
                *("helexa", "helexa=", "=https://hub", "https://hub", "helexa=hub.example.org"),
                *("helexa=ftp://hub", "helexa=https://u:p@hub", "helexa=https://hub?x=1"),
                *("helexa=https://hub:99999", "Helexa=https://hub", "2x=https://h", "a=https://b,"),
                *("huggingface=https://hub", "pypi=https://hub", "path=https://hub"),
                *("upstream=https://hub", "a=https://b,a=https://c", "a=https://b extra"),
                *("a=https://b token=", "a=https://b token=x-y", "a=https://b token=REDIS_URL"),
                *("a=https://b cache=hub", "a=https://b cache=/x cache=/y", "a=https://b c=red"),
                *("a=https://b default,c=https://d default", "a=https://b token=DATABASE_URL"),
                *("a=https://b token=HELEXA_SECRET_KEY", "a=https://b token=HF_TOKEN"),
            )
        case MetricsAddress():
            return (":0", ":65536", "a:b", "http://box:9100", "box:9100/metrics")
    raise AssertionError(f"no samples for {setting.kind}")
