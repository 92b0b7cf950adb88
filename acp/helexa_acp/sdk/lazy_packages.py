"""Packages of SDKs, imported without the modules whose names they gather.

``openai.types`` and ``anthropic.types`` import a module for each of their thousands of models,
which takes seconds; a bridge uses a few. A package that is made lazy is empty at first: a name is
imported from its module when it is asked for. It is a process's own choice, made before the first
import.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

GATHERING = ("openai.types", "anthropic.types", "anthropic.resources", "anthropic.lib")
"""These and their submodules are lazy where they only gather names."""
FACADES = ("anthropic",)
"""Lazy although it does more: it imports the clients of five clouds, and sets up a log."""
IMPORT = re.compile(r"^from (\.\w[\w.]*) import (?:\(([^()]*)\)|([^()*\n]+))\n", re.MULTILINE)
HARMLESS = re.compile(
    r"^from __future__ import annotations\n|^__all__ = \[[^\]]*\]\n|#.*", re.MULTILINE
)
COMMENT = re.compile(r"#.*")
NAME = re.compile(r"(\w+)(?: as (\w+))?")


def gathered_names(source: str) -> dict[str, tuple[str, str]]:
    """What a package's file imports from its own modules: name -> (module, its name there)."""
    names = {}
    for module, several, one in IMPORT.findall(source):
        for match in NAME.finditer(COMMENT.sub("", several or one)):
            names[match[2] or match[1]] = (module, match[1])
    return names


def only_gathers(source: str) -> bool:
    return not HARMLESS.sub("", IMPORT.sub("", source)).strip()


class _Loader(SourceFileLoader):
    def __init__(self, loader: SourceFileLoader, names: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(loader.name, loader.path)
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        names, package = self._names, module.__name__

        def found(name: str) -> Any:
            if name in names:
                of_module, its_name = names[name]
                value = getattr(importlib.import_module(of_module, package), its_name)
                setattr(module, name, value)
                return value
            if not name.startswith("_"):
                with contextlib.suppress(ModuleNotFoundError):
                    return importlib.import_module(f"{package}.{name}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")

        module.__dict__.update(__getattr__=found, __all__=list(names))


class LazyPackages:
    """A finder of modules, to be put first into ``sys.meta_path``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_facade = fullname in FACADES
        if not (is_facade or _is_in(fullname, GATHERING)):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec
        if spec.submodule_search_locations is None:
            return spec
        source = spec.loader.get_data(spec.loader.path).decode()
        names = gathered_names(source)
        # A name that is a module's as well would be that module once it is imported.
        modules = {module[1:].partition(".")[0] for module, _ in names.values()}
        if (is_facade or only_gathers(source)) and names.keys().isdisjoint(modules):
            spec.loader = _Loader(spec.loader, names)
        return spec


def _is_in(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def install() -> None:
    """Installs the import hook for the rest of the process."""
    sys.meta_path.insert(0, LazyPackages())
