"""The ACP SDK's models, each built when it is first used.

Its ``schema`` is a generated file of some 280 pydantic models, which take half a second to build; a
session uses some forty. Here a model's name stands for its source until something is asked of it.
The file has to look as it is known to: else it is imported as ever.

    name in acp.schema ── called, subclassed, asked for an attribute, met in a field ──▶ the model
"""

from __future__ import annotations

import operator
import re
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, Union

MODULE = "acp.schema"
STATEMENT = re.compile(r"^(?=class |[A-Za-z_@])", re.MULTILINE)
CLASS = re.compile(r"class (\w+)\((\w+)(?:\[.*\])?\):\n")
DESCRIBED = "use_attribute_docstrings=True"
"""Pydantic then reads the source again to describe each field; the bridge never asks for that."""
DEFERRED = "defer_build=True"
"""Validators are built when they are first used, too."""
_building = threading.RLock()


class LazyModel:
    """Stands for a model wherever the SDK and this package use one, but in ``match``."""

    __slots__ = ("__name__", "_model", "_source", "_variables")

    def __init__(self, name: str, source: str, variables: dict[str, Any]) -> None:
        self.__name__ = name
        self._source = source
        self._variables = variables
        self._model: Any = None

    def built(self) -> Any:
        with _building:
            if self._model is None:
                exec(compile(self._source, MODULE, "exec"), self._variables)
                self._model = self._variables[self.__name__]
            return self._model

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.built()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        # What typing asks of everything that it meets is no use of it.
        if name.startswith("__") and not name.startswith("__pydantic_"):
            raise AttributeError(name)
        return getattr(self.built(), name)

    def __or__(self, other: Any) -> Any:
        return _union(self, other)

    def __ror__(self, other: Any) -> Any:
        return _union(other, self)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.built(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self.built())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self.built())

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return handler(self.built())


def _union(*models: Any) -> Any:
    """``X | Y``: Python has it for classes alone."""
    return operator.getitem(Union, models)


def parts_of(source: str) -> list[tuple[str | None, str]]:
    """The file's statements in order, each with the name of the model that it is, or ``None``."""
    parts: list[tuple[str | None, str]] = []
    models = {"BaseModel", "RootModel"}
    for statement in STATEMENT.split(source):
        found = CLASS.match(statement)
        is_model = found is not None and found[2] in models
        if found is not None and is_model:
            models.add(found[1])
        parts.append((found[1] if found is not None and is_model else None, statement))
    return parts


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        source = self.get_data(self.path).decode()
        if DESCRIBED not in source:
            super().exec_module(module)
            return
        source = source.replace(DESCRIBED, DEFERRED)
        variables = module.__dict__
        future = "from __future__ import annotations\n"
        for name, statement in parts_of(source):
            if name is not None:
                variables[name] = LazyModel(name, future + statement, variables)
            elif statement.strip():
                exec(compile(future + statement, self.path, "exec"), variables)


class LazyModels:
    """A finder of modules, to be put first into ``sys.meta_path``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Installs the import hook for the rest of the process."""
    sys.meta_path.insert(0, LazyModels())
