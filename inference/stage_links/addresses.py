"""Addresses of stages as words in load specs: ``10.0.0.5:7400``, ``[2001:db8::5]:7400``. Pure."""

from __future__ import annotations

MAX_PORT = 65535


def address_in_words(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(words: str) -> tuple[str, int]:
    """The host and port. Raises ``ValueError``."""
    host, _, port = words.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"{words!r} is no address of a stage")
    return host, int(port)
