"""A table of cases in one test. Every case runs, and each that fails is reported by its name.

An item of ``parametrize`` is collected, set up and reported in every process of a run, which for a
pure function takes longer than the case. ``parametrize`` stays where a case needs fixtures of its
own, or is so long that processes should share them.

    @each_case("text, number", [("1", 1), ("2", 2)])
    def test_a_number_is_read(text: str, number: int) -> None: ...

A case that passes costs a call. One that fails is a subtest of pytest's.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.time_limit import TimeLimitExceeded

ParameterSet = type(pytest.param())
Test = Callable[..., Any]
Ids = Callable[[Any], object] | Iterable[object | None] | None


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    given: dict[str, Any]


def each_case(names: str | Sequence[str], values: Iterable[Any], ids: Ids = None) -> Any:
    """Takes what ``parametrize`` takes, and may be stacked like it or stand over a class. Raises
    ``ValueError`` for a table without cases and for a case that has marks."""
    listed = [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)
    table = _named(_cases(listed, list(values), ids))

    def decorate(test: Any) -> Any:
        if inspect.isclass(test):
            for name, method in list(vars(test).items()):
                if name.startswith("test"):
                    setattr(test, name, decorate(method))
            return test
        innermost, below = getattr(test, "tabled", (test, [Case("", {})]))
        cases = [
            Case("-".join(filter(None, (one.name, other.name))), one.given | other.given)
            for other in table
            for one in below
        ]
        in_one: Any = _in_one(innermost, cases)
        in_one.__dict__.update(test.__dict__)  # its marks
        in_one.__wrapped__ = innermost
        in_one.__signature__ = _without(inspect.signature(innermost), cases[0].given)
        in_one.tabled = (innermost, cases)
        return in_one

    return decorate


def _in_one(test: Test, cases: list[Case]) -> Test:
    @wraps(test)
    def in_one(*args: Any, subtests: pytest.Subtests, **fixtures: Any) -> None:
        __tracebackhide__ = True
        skipped: list[str] = []
        for index, case in enumerate(cases):
            with _reported(case, subtests, skipped), _own(fixtures, index) as own:
                test(*args, **own, **case.given)
        _skip_if(len(skipped) == len(cases), skipped)

    @wraps(test)
    async def in_one_async(*args: Any, subtests: pytest.Subtests, **fixtures: Any) -> None:
        __tracebackhide__ = True
        skipped: list[str] = []
        for index, case in enumerate(cases):
            with _reported(case, subtests, skipped), _own(fixtures, index) as own:
                await test(*args, **own, **case.given)
        _skip_if(len(skipped) == len(cases), skipped)

    return in_one_async if inspect.iscoroutinefunction(test) else in_one


def _without(signature: inspect.Signature, given: dict[str, Any]) -> inspect.Signature:
    """The fixtures of a test, without what its table gives."""
    parameters = dict(signature.parameters)
    for name in given:
        if parameters.pop(name, None) is None:
            raise ValueError(f"the test takes no {name}")
    subtests = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
    return signature.replace(parameters=[*parameters.values(), subtests])


@contextmanager
def _reported(case: Case, subtests: pytest.Subtests, skipped: list[str]) -> Iterator[None]:
    __tracebackhide__ = True
    try:
        yield
    except TimeLimitExceeded:
        raise
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        if isinstance(error, pytest.skip.Exception):
            skipped.append(str(error))
        with subtests.test(case.name):
            raise


def _skip_if(every_one: bool, skipped: list[str]) -> None:
    if every_one:
        pytest.skip(skipped[0])


@contextmanager
def _own(fixtures: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """Gives a case an empty directory, undoes what it patches, and hides what others printed."""
    own = dict(fixtures)
    with ExitStack() as at_the_end:
        if isinstance(shared_dir := fixtures.get("tmp_path"), Path):
            own["tmp_path"] = shared_dir / f"case-{index}"
            own["tmp_path"].mkdir()
        if isinstance(patch := fixtures.get("monkeypatch"), pytest.MonkeyPatch):
            own["monkeypatch"] = at_the_end.enter_context(patch.context())
        if isinstance(printed := fixtures.get("capsys"), pytest.CaptureFixture):
            printed.readouterr()
        if isinstance(logged := fixtures.get("caplog"), pytest.LogCaptureFixture):
            logged.clear()
        yield own


def _cases(names: list[str], values: list[Any], ids: Ids) -> Iterator[Case]:
    if not values:
        raise ValueError(f"no case of {names}")
    given_names = [None] * len(values) if ids is None or callable(ids) else list(ids)
    for index, (value, given_name) in enumerate(zip(values, given_names, strict=True)):
        name: object = given_name
        if isinstance(value, ParameterSet):
            if value.marks:
                raise ValueError(f"a case with marks, {value}: it needs parametrize")
            row, name = list(value.values), name or value.id
        else:
            row = [value] if len(names) == 1 else list(value)
        given = dict(zip(names, row, strict=True))
        if name is None:
            parts = [_name_of(one, f"{key}{index}", ids) for key, one in given.items()]
            name = "-".join(parts)
        yield Case(str(name), given)


def _name_of(value: Any, otherwise: str, ids: Ids) -> str:
    if callable(ids) and (named := ids(value)) is not None:
        value = named
    match value:
        case str() | bytes():
            return ascii(value).removeprefix("b")[1:-1][:100]
        case bool() | int() | float() | complex() | None | Enum():
            return str(value)
    return str(getattr(value, "__name__", otherwise))


def _named(cases: Iterable[Case]) -> list[Case]:
    """Tells cases of one name apart by their places in the table."""
    listed = list(cases)
    num_of = Counter(one.name for one in listed)
    return [
        one if num_of[one.name] == 1 and one.name else Case(f"{one.name}#{index}", one.given)
        for index, one in enumerate(listed)
    ]
