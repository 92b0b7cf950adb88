"""The private Redis' address for invited hosts, and the ports of this machine.

Standard library only at import: flags are checked before anything is installed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.whole_file import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def is_tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def address(self) -> str:
        host = next(iter(reached_at(self.host)), "127.0.0.1")
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def directives(self) -> list[str]:
        listen = "*" if self.host in ("", "0.0.0.0") else self.host
        if not self.is_tls:
            return [f"bind {listen}", f"port {self.port}"]
        return [
            f"bind {listen}",
            "port 0",
            f"tls-port {self.port}",
            f'tls-cert-file "{self.tls_cert}"',
            f'tls-key-file "{self.tls_key}"',
            "tls-auth-clients no",
        ]

    def certificate(self) -> str:
        """PEM of a self-signed certificate: each invitation includes it. Raises
        ``BootstrapError`` where it cannot be read."""
        if self.tls_cert is None:
            return ""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(self.tls_cert)
            found = context.get_ca_certs()
            text = self.tls_cert.read_text()
        except (OSError, ssl.SSLError, ValueError) as error:
            raise BootstrapError(f"cannot read the certificate {self.tls_cert}: {error}") from error
        is_its_own = len(found) == 1 and found[0].get("subject") == found[0].get("issuer")
        return text if is_its_own else ""


ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})
SOMEWHERE_ELSE = ("192.0.2.1", 9)
"""An address of documentation: nothing is sent there."""


def reached_at(host: str) -> list[str]:
    """The addresses at which other hosts reach a server that listens on ``host``, the best first;
    empty where this machine has no network."""
    if host not in ANY_ADDRESS:
        return [host]
    import psutil  # with the other requirements

    stats = psutil.net_if_stats()
    found = []
    for interface, addresses in psutil.net_if_addrs().items():
        if interface in stats and stats[interface].isup:
            found += [one.address for one in addresses if one.family == socket.AF_INET]
    parsed = map(ipaddress.ip_address, found)
    usable = [str(one) for one in parsed if not (one.is_loopback or one.is_link_local)]
    first = _outgoing_address()
    return sorted(usable, key=lambda address: address != first)


def _outgoing_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE_ELSE)
        except OSError:
            return None
        return str(probe.getsockname()[0])


def try_to_listen(host: str, port: int) -> OSError | None:
    """Why no process can listen there now; ``None``: one can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error
    return None


SHARE_FILE = "share.json"


def keep_share(redis_dir: Path, share: Share) -> None:
    """Raises ``OSError``."""
    write_whole(redis_dir / SHARE_FILE, json.dumps({"host": share.host, "port": share.port}))


def forget_share(redis_dir: Path) -> None:
    """Raises ``OSError``."""
    (redis_dir / SHARE_FILE).unlink(missing_ok=True)


def find_share(redis_dir: Path) -> Share | None:
    """``None``: the page has opened none, or the file has no valid address."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads((redis_dir / SHARE_FILE).read_text())
        return Share(host=str(found["host"]), port=int(found["port"]))
    return None
