"""The flags of our own commands, checked before anything is installed. Standard library only."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from helexa_site.bootstrap.sharing import ANY_ADDRESS, Share, reached_at
from helexa_site.program import program
from inference.protocol.joining import Joining, JoinLineError, decode_joining
from inference.settings.storage import REDIS_URL

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 31313
MAX_PORT = 65535
NEURON_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    host: str
    port: int
    data_dir: Path | None
    """``None``: HELEXA_DATA_DIR, else ``var`` in the checkout."""
    with_model: bool
    with_neuron: bool = True
    share: Share | None = None
    """The address of the private Redis for invited hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronOptions:
    name: str | None
    """``None``: its name when it joined, else the host's."""
    joining: Joining | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    host: str
    port: int
    as_json: bool


def parse_serve(arguments: list[str]) -> ServeOptions:
    """Exits with code 2 and a usage line for an unknown flag."""
    parser = argparse.ArgumentParser(
        prog=f"{program()} serve",
        description="Run everything here: Redis, gateway, control, one neuron and a small model.",
        epilog="DATABASE_URL and REDIS_URL, where set, are used instead of SQLite and a private "
        "Redis.",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to bind (%(default)s)")
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="(%(default)s)")
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="everything that is written goes here (HELEXA_DATA_DIR; else var, beside manage.py, "
        "of a wheel ~/.local/share/helexa)",
    )
    parser.add_argument(
        "--no-model", action="store_true", help="do not offer and load the small default model"
    )
    parser.add_argument(
        "--no-neuron", action="store_true", help="load no models on this machine: other hosts do"
    )
    parser.add_argument(
        "--share",
        metavar="ADDRESS:PORT",
        help=f"let hosts that were invited ({program()} neurons invite) reach the private Redis "
        "there",
    )
    parser.add_argument("--share-tls-cert", type=Path, metavar="FILE", help="over TLS: PEM")
    parser.add_argument("--share-tls-key", type=Path, metavar="FILE", help="its private key")
    found = parser.parse_args(arguments)
    return ServeOptions(
        host=found.host,
        port=found.port,
        data_dir=found.data_dir,
        with_model=not found.no_model,
        with_neuron=not found.no_neuron,
        share=_share(parser, found),
    )


def parse_neuron(arguments: list[str]) -> NeuronOptions:
    parser = argparse.ArgumentParser(
        prog=f"{program()} neuron",
        description="Run only a neuron, on a GPU host. Needs no database: a line that "
        f"`{program()} neurons invite` printed, once, or REDIS_URL.",
    )
    parser.add_argument("--name", type=_neuron_name, help="by default the host's")
    parser.add_argument("--join", metavar="LINE", type=_joining, help="what neurons invite printed")
    found = parser.parse_args(arguments)
    if found.join and found.name not in (None, found.join.neuron):
        parser.error(f"the invitation is for the name {found.join.neuron}")
    return NeuronOptions(name=found.name, joining=found.join)


def parse_environment(arguments: list[str], kinds: tuple[str, ...]) -> str:
    parser = argparse.ArgumentParser(
        prog=f"{program()} environment",
        description="Make the environment (HELEXA_VENV) for this kind of process, or mend it.",
    )
    parser.add_argument("kind", choices=kinds)
    return str(parser.parse_args(arguments).kind)


def parse_doctor(arguments: list[str]) -> DoctorOptions:
    parser = argparse.ArgumentParser(
        prog=f"{program()} doctor",
        description="Is everything here as helexa needs it? Each line is ok or names the remedy; "
        "the exit code is 1 where something fails. Changes nothing.",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="the gateway's (%(default)s)")
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    found = parser.parse_args(arguments)
    return DoctorOptions(host=found.host, port=found.port, as_json=found.json)


def gateway_host(arguments: list[str]) -> str:
    """The address in the arguments of ``manage.py gateway``. Django parses and checks the rest."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--host", default=DEFAULT_HOST)
    try:
        host: str = parser.parse_known_args(arguments)[0].host
    except argparse.ArgumentError:
        return DEFAULT_HOST
    return host


def default_neuron_name() -> str:
    words = re.findall(r"[a-z0-9]+", socket.gethostname().partition(".")[0].lower())
    return "-".join(words) or "local"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable_host(host: str) -> str:
    """The host at which this machine itself reaches a server bound to ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def base_url(host: str, port: int) -> str:
    reachable = reachable_host(host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def shown_urls(host: str, port: int) -> list[str]:
    """The server's URLs, for people. The first one works from other machines where any does."""
    here = base_url(host, port)
    if host not in ANY_ADDRESS:
        return [here]
    return [*(base_url(address, port) for address in reached_at(host)), here]


def _share(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Share | None:
    if (found.share_tls_cert is None) != (found.share_tls_key is None):
        parser.error("--share-tls-cert and --share-tls-key need each other")
    if found.share is None:
        if found.share_tls_cert is not None:
            parser.error("--share-tls-cert needs --share")
        return None
    if REDIS_URL.read(os.environ):
        parser.error("--share opens the private Redis, and REDIS_URL names another one")
    host, colon, port = found.share.rpartition(":")
    try:
        number = _port(port)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--share: {error}")
    if not colon:
        parser.error("--share: use ADDRESS:PORT, as in 10.0.0.5:31315")
    return Share(
        host=host.strip("[]") or "0.0.0.0",
        port=number,
        tls_cert=_absolute(found.share_tls_cert),
        tls_key=_absolute(found.share_tls_key),
    )


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _joining(line: str) -> Joining:
    try:
        return decode_joining(line)
    except JoinLineError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(word: str) -> int:
    if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{word!r} is not a port: use 1 to {MAX_PORT}")
    return int(word)


def _neuron_name(word: str) -> str:
    if not NEURON_NAME.fullmatch(word):
        raise argparse.ArgumentTypeError(
            f"{word!r} is not a neuron name: use lower-case letters and digits, "
            "joined by single dots, hyphens or underscores"
        )
    return word
