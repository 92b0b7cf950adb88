"""The inventory of doors is the code's: every door exists, and nothing that writes is missing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.core.management import get_commands, load_command_class
from django.test import RequestFactory
from django.urls import URLPattern, URLResolver, get_resolver, resolve, reverse

from helexa_site.reference.deeds import (
    ADMIN_ALONE,
    DEEDS,
    NOT_DONE_BY_OPERATORS,
    OTHER_COMMANDS,
    OTHER_ROUTES,
    Deed,
)
from tests.metering.services.test_every_service_has_an_actor import SERVICES, WITHOUT_AN_ACTOR

SAMPLES = {"id": "00000000-0000-4000-8000-000000000000", "pk": "1"}
WRITING = ("post", "put", "patch", "delete")
PAGE = "page "
OURS = ("fleet", "metering", "metering.bench", "helexa_site")
DJANGOS = ("migrate", "runserver")
"""Ours, with Django's own flags."""


def routes(patterns: list[URLPattern | URLResolver], prefix: str = "/") -> Iterator[str]:
    """Every method and path of the operator's API that writes."""
    for each in patterns:
        path = prefix + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from routes(each.url_patterns, path)
            continue
        view = getattr(each.callback, "cls", None)
        module = getattr(view, "__module__", "")
        if view is None or not module.startswith(("fleet.api", "metering.api")):
            continue
        named = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)
        for method in WRITING:
            if hasattr(view, method) and not named.endswith(("/", "^")):
                yield f"{method.upper()} {named}"


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name, app in get_commands().items():
        if app in OURS and isinstance(app, str) and name not in DJANGOS:
            yield name, load_command_class(app, name).create_parser("manage.py", name)


def leaves(words: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The words of the command's subcommands, or of the command itself."""
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for action in inner:
        names = {id(one): name for name, one in reversed(action.choices.items())}  # not aliases
        for name in names.values():
            yield from leaves(f"{words} {name}", action.choices[name])
    if not inner:
        yield words


def test_a_missing_door_names_the_reason() -> None:
    for deed in DEEDS:
        assert all((deed.rest, deed.command, deed.admin)) or deed.why, deed


@pytest.mark.parametrize("deed", [one for one in DEEDS if one.rest], ids=lambda one: one.rest)
def test_the_route_exists(deed: Deed) -> None:
    method, _, template = deed.rest.partition(" ")
    path = re.sub(r"\{(\w+)\}", lambda part: SAMPLES.get(part[1], "x"), template)
    found = resolve(path, "helexa_site.api_urls")
    assert hasattr(found.func.cls, method.lower())  # type: ignore[attr-defined]


def test_every_route_that_writes_is_in_the_table() -> None:
    known = {re.sub(r"\{\w+\}", "{}", one.rest) for one in DEEDS}
    known |= {re.sub(r"\{\w+\}", "{}", route) for route in OTHER_ROUTES}
    found = {re.sub(r"\{\w+\}", "{}", route) for route in routes(get_resolver().url_patterns)}
    assert len(found) > 30
    assert found - known == set()


def test_every_command_is_in_the_table_and_exists() -> None:
    there = {words for name, parser in parsers() for words in leaves(name, parser)}
    named = {deed.command for deed in DEEDS if deed.command} | OTHER_COMMANDS
    assert named == there


def test_every_audited_service_is_in_the_table_and_exists() -> None:
    names = [
        ".".join(path.split(".")[-2:])
        for path in set(SERVICES) - set(WITHOUT_AN_ACTOR)
        if path.startswith(("fleet.", "metering."))
    ]
    audited = set(names)
    assert len(audited) == len(names), "two services have one name in the table"
    named = {service for deed in DEEDS for service in deed.services}
    assert named | set(NOT_DONE_BY_OPERATORS) == audited
    assert not named & set(NOT_DONE_BY_OPERATORS)


def test_every_page_of_the_admin_is_in_the_table() -> None:
    reverse("admin:index")  # which imports the pages
    registered = {model._meta.label_lower for model in site._registry}
    named = {deed.admin.partition(":")[0] for deed in DEEDS if ":" in deed.admin}
    assert named | set(ADMIN_ALONE) == registered
    assert not named & set(ADMIN_ALONE)


@pytest.mark.django_db
def test_the_admin_does_what_the_table_reports() -> None:
    request = RequestFactory().get("/admin/")
    request.user = User(username="root", is_superuser=True, is_staff=True, is_active=True)
    reverse("admin:index")
    pages = {model._meta.label_lower: page for model, page in site._registry.items()}
    for deed in DEEDS:
        label, _, what = deed.admin.rpartition(": ")
        if what.startswith(PAGE):
            name = what.removeprefix(PAGE)
            assert reverse(f"admin:{name}" if label else name), deed
        elif what.startswith("action "):
            assert what.removeprefix("action ") in pages[label].actions, deed
        elif what.startswith("inline "):
            models = {inline.model._meta.label_lower for inline in pages[label].inlines}
            assert what.removeprefix("inline ") in models, deed
        elif what:
            assert getattr(pages[label], f"has_{what}_permission")(request), deed
