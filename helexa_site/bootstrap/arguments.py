"""The flags of our own commands, checked before anything is installed. Standard library only."""

from __future__ import annotations

import argparse
import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path

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


def parse_serve(arguments: list[str]) -> ServeOptions:
    """Ends the process with code 2 and a usage line on a flag that is not known."""
    parser = argparse.ArgumentParser(
        prog="manage.py serve",
        description="Run everything here: Redis, gateway, control, one neuron and a small model.",
        epilog="DATABASE_URL and REDIS_URL, where set, are used instead of SQLite and a private "
        "Redis.",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to bind (%(default)s)")
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="(%(default)s)")
    parser.add_argument(
        "--data-dir", type=Path, help="everything that is written goes here (var, beside manage.py)"
    )
    parser.add_argument(
        "--no-model", action="store_true", help="do not offer and load the small default model"
    )
    found = parser.parse_args(arguments)
    return ServeOptions(
        host=found.host,
        port=found.port,
        data_dir=found.data_dir,
        with_model=not found.no_model,
    )


def parse_neuron(arguments: list[str]) -> str:
    """The neuron's name; by default the host's."""
    parser = argparse.ArgumentParser(
        prog="manage.py neuron",
        description="Run only a neuron, on a GPU host. Needs REDIS_URL and no database.",
    )
    parser.add_argument("--name", type=_neuron_name, default=default_neuron_name())
    found: str = parser.parse_args(arguments).name
    return found


def gateway_host(arguments: list[str]) -> str:
    """What ``manage.py gateway`` is told to listen on. Everything else is Django's to parse, and
    to complain of."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--host", default=DEFAULT_HOST)
    try:
        host: str = parser.parse_known_args(arguments)[0].host
    except argparse.ArgumentError:
        return DEFAULT_HOST
    return host


def default_neuron_name() -> str:
    """The host's name as a slug."""
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
    """Where this machine itself reaches a server that is bound to ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def base_url(host: str, port: int) -> str:
    reachable = reachable_host(host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


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
