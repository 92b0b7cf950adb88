"""The flags of our own commands, checked before anything is installed. Standard library only."""

from __future__ import annotations

import argparse
import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from helexa_site.data_directory import Share
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
    with_model: bool
    with_neuron: bool = True
    share: Share | None = None


def parser_of(command: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    prog = f"{program()} {command}"
    return argparse.ArgumentParser(prog=prog, description=description, epilog=epilog)


def parse_serve(arguments: list[str]) -> ServeOptions:
    parser = parser_of(
        "serve",
        "Run everything here: Redis, gateway, control, one neuron and a small model.",
        "DATABASE_URL and REDIS_URL, where set, are used instead of SQLite and a private Redis.",
    )
    _add_address(parser, "address to bind")
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="everything that is written goes here (HELEXA_DATA_DIR; else var, beside manage.py, "
        "of a wheel ~/.local/share/helexa)",
    )
    parser.add_argument(
        "--no-model",
        dest="with_model",
        action="store_false",
        help="do not offer and load the small default model",
    )
    parser.add_argument(
        "--no-neuron",
        dest="with_neuron",
        action="store_false",
        help="load no models on this machine: other hosts do",
    )
    parser.add_argument(
        "--share",
        metavar="ADDRESS:PORT",
        type=_share,
        help=f"let hosts that were invited ({program()} neurons invite) reach the private Redis "
        "there",
    )
    parser.add_argument("--share-tls-cert", type=_file, metavar="FILE", help="over TLS: PEM")
    parser.add_argument("--share-tls-key", type=_file, metavar="FILE", help="its private key")
    found = vars(parser.parse_args(arguments))
    tls_cert, tls_key = found.pop("share_tls_cert"), found.pop("share_tls_key")
    if (tls_cert is None) != (tls_key is None):
        parser.error("--share-tls-cert and --share-tls-key need each other")
    if found["share"] is None and tls_cert is not None:
        parser.error("--share-tls-cert needs --share")
    if found["share"] is not None:
        if REDIS_URL.read(os.environ):
            parser.error("--share opens the private Redis, and REDIS_URL names another one")
        found["share"] = replace(found["share"], tls_cert=tls_cert, tls_key=tls_key)
    return ServeOptions(**found)


def parse_neuron(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of(
        "neuron",
        "Run only a neuron, on a GPU host. Needs no database: a line that "
        f"`{program()} neurons invite` printed, once, or REDIS_URL.",
    )
    parser.add_argument("--name", type=_neuron_name, help="by default the host's")
    parser.add_argument(
        "--join",
        dest="joining",
        metavar="LINE",
        type=_joining,
        help="what neurons invite printed",
    )
    found = parser.parse_args(arguments)
    if found.joining and found.name not in (None, found.joining.neuron):
        parser.error(f"the invitation is for the name {found.joining.neuron}")
    return found


def parse_doctor(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of(
        "doctor",
        "Is everything here as helexa needs it? Each line is ok or names the remedy; "
        "the exit code is 1 where something fails. Changes nothing.",
    )
    _add_address(parser, "the gateway's")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def gateway_host(arguments: list[str]) -> str:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--host", default=DEFAULT_HOST)
    try:
        return str(parser.parse_known_args(arguments)[0].host)
    except argparse.ArgumentError:
        return DEFAULT_HOST


def default_neuron_name() -> str:
    words = re.findall(r"[a-z0-9]+", socket.gethostname().partition(".")[0].lower())
    return "-".join(words) or "local"


def _add_address(parser: argparse.ArgumentParser, host_help: str) -> None:
    parser.add_argument("--host", default=DEFAULT_HOST, help=f"{host_help} (%(default)s)")
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="(%(default)s)")


def _share(word: str) -> Share:
    host, colon, port = word.rpartition(":")
    number = _port(port)
    if not colon:
        raise argparse.ArgumentTypeError("use ADDRESS:PORT, as in 10.0.0.5:31315")
    return Share(host=host.strip("[]") or "0.0.0.0", port=number)


def _file(word: str) -> Path:
    return Path(word).absolute()


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
