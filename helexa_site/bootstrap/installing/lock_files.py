"""Lock files: exact versions with the hashes of their files, which pip checks what it fetches by.

    requirements.txt           requirements-gateway.lock + requirements-neuron.lock
      and torch has CUDA         + requirements-cuda.lock
    requirements-gateway.txt   requirements-gateway.lock
    any other                  none

If a requirements file was edited by hand and asks for a package that is not locked, the install
does not check hashes and prints that. Standard library only. ``packaging/lock`` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from helexa_site.bootstrap.installing.requirements import Requirement, normal_name
from inference.settings.installation import REQUIRE_HASHES

CPU_LABEL = "+cpu"
HEAD = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^\]]*\])?==(?P<version>[\w.+!-]+)"
    r"\s*(;\s*(?P<marker>.*?))?\s*\\?$"
)
HASH = re.compile(r"^\s+--hash=sha256:(?P<sha256>[0-9a-f]{64})\s*\\?$")
NEEDED_BY = re.compile(r"^\s+#\s+(via\s+)?(?P<name>[A-Za-z0-9._-]+)$")
OF_GATEWAY, OF_NEURON, OF_CUDA = (
    "requirements-gateway.lock",
    "requirements-neuron.lock",
    "requirements-cuda.lock",
)
LOCKS_OF = {
    "requirements-gateway.txt": (OF_GATEWAY,),
    "requirements.txt": (OF_GATEWAY, OF_NEURON),
}


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a lock file."""

    name: str
    extras: str
    """``[extra]`` with its brackets, or empty."""
    version: str
    marker: str
    hashes: tuple[str, ...]
    """SHA-256 of each file that may be installed, in hexadecimal."""
    needed_by: frozenset[str] = frozenset()
    """The names of packages, and of requirements files, that need it, from the file's comments."""

    @property
    def pin(self) -> str:
        """The pin as a requirements file has it."""
        marker = f" ; {self.marker}" if self.marker else ""
        return f"{self.name}{self.extras}=={self.version}{marker}"

    def with_hashes(self, more: Iterable[str]) -> Locked:
        return replace(self, hashes=tuple(sorted({*self.hashes, *more})))

    def text(self) -> str:
        """Returns the pin and its hashes as pip reads them."""
        return " \\\n".join([self.pin, *(f"    --hash=sha256:{one}" for one in self.hashes)]) + "\n"


def locks_of(requirements: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Returns the lock files of these requirements, without the one for CUDA. Empty: their installs
    are not checked."""
    if not REQUIRE_HASHES.read(environment):
        return ()
    paths = tuple(requirements.with_name(name) for name in LOCKS_OF.get(requirements.name, ()))
    return paths if all(path.is_file() for path in paths) else ()


def not_locked(wanted: Iterable[Requirement], locks: Iterable[Path]) -> list[Requirement]:
    """The requirements that the locks hold in no version, or in another one."""
    pins = {(normal_name(one.name), one.version) for path in locks for one in locked_in(path)}
    return [one for one in wanted if (normal_name(one.name), one.version) not in pins]


def cpu_build(torch: Requirement, locks: Iterable[Path]) -> str:
    """A lock file of torch's build for CPUs alone. Empty where it is not locked.

    Named with its label: pip would take PyPI's build, whose hash it knows before it fetches it.
    """
    for path in locks:
        for one in locked_in(path):
            if one.name == torch.name:
                return replace(one, version=f"{one.version}{CPU_LABEL}").text()
    return ""


def locked_in(path: Path) -> Iterator[Locked]:
    """Raises ``OSError``; ``ValueError`` naming a line that is not understood."""
    head: re.Match[str] | None = None
    hashes: list[str] = []
    needed_by: set[str] = set()
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if match := HASH.match(line):
            hashes.append(match["sha256"])
        elif match := NEEDED_BY.match(line):
            needed_by.add(match["name"])
        elif match := HEAD.match(line):
            if head is not None:
                yield _locked(head, hashes, needed_by)
            head, hashes, needed_by = match, [], set()
        elif line.strip() and not line.strip().startswith("#"):
            raise ValueError(f"{path.name}:{number}: not of a lock file: {line}")
    if head is not None:
        yield _locked(head, hashes, needed_by)


def _locked(head: re.Match[str], hashes: list[str], needed_by: set[str]) -> Locked:
    return Locked(
        name=head["name"],
        extras=head["extras"] or "",
        version=head["version"],
        marker=head["marker"] or "",
        hashes=tuple(hashes),
        needed_by=frozenset(needed_by - {"via"}),
    )
