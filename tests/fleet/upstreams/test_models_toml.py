"""Upstreams in a models.toml: read, written, planned and imported, without their keys."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import selectors, services
from fleet.errors import UpstreamValueError
from fleet.models import Upstream
from fleet.models_toml import plan_import, read_document, write_document
from fleet.models_toml.reading import ModelsTomlError
from metering.actor import COMMAND

pytestmark = pytest.mark.django_db(transaction=True)

BOX = """
[[upstreams]]
name = "box"
url = "http://box:8000/v1/"
concurrency = 4

[[models]]
id = "far"
source = "upstream:box/m"
"""


def imported(text: str, **options: Any) -> list[str]:
    document = read_document(text)
    return list(services.catalogue_import(actor=COMMAND, document=document, **options).lines())


def test_a_file_makes_changes_and_removes_upstreams_with_their_models() -> None:
    made = imported(BOX)
    assert made[:3] == ["+ upstream box", '    url = "http://box:8000/v1"', "    concurrency = 4"]
    written = write_document(selectors.catalogue_state())
    assert plan_import(read_document(written), selectors.catalogue_state(), prune=True).is_empty
    changed = imported(BOX.replace("concurrency = 4", "concurrency = 5"))
    assert changed[:2] == ["~ upstream box", "    concurrency = 4 -> 5"]
    assert Upstream.objects.get().concurrency == 5
    assert "not in the file, left alone: far, box" in imported("")[-1]
    removed = imported("", prune=True)
    assert removed == ["- upstream box", "- model far"]
    assert not Upstream.objects.exists()


def test_a_key_is_in_no_file_and_stays() -> None:
    services.upstream_create(actor=COMMAND, name="box", url="http://box:8000/v1", key="sk-secret-1")
    written = write_document(selectors.catalogue_state())
    assert "sk-secret-1" not in written and "key" not in written
    imported(BOX)
    assert Upstream.objects.get().has_key
    with pytest.raises(UpstreamValueError, match="needs the key again"):
        imported(BOX.replace("box:8000", "evil"))
    assert Upstream.objects.get().url == "http://box:8000/v1"


@pytest.mark.parametrize("leaves", [True, False])
def test_it_is_brought_inside_and_outside_with_its_models(leaves: bool) -> None:
    def text(is_outside: bool) -> str:
        word = str(is_outside).lower()
        return (
            BOX.replace("concurrency = 4", f"leaves_network = {word}")
            + f"may_leave_network = {word}\n"
        )

    imported(text(not leaves))
    imported(text(leaves))
    assert Upstream.objects.get().leaves_network is leaves


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('name = "box"', 'name = "Box"'), "is not an upstream's name"),
        (('name = "box"', ""), "An upstream has a name"),
        (("concurrency = 4", 'key = "sk-x"'), "upstreams change NAME --key -"),
        (("concurrency = 4", "speed = 4"), "There is no such key"),
        (("concurrency = 4", 'concurrency = "4"'), "is not a whole number"),
        (("concurrency = 4", 'dialect = "grpc"'), "is not one of openai, anthropic, ollama"),
        (("http://box:8000/v1/", "http://u:p@box/"), "holds neither"),
        (("upstream:box/m", "upstream:other/m"), "There is no upstream 'other'"),
    ],
)
def test_what_cannot_be_is_a_problem_and_changes_nothing(
    change: tuple[str, str], problem: str
) -> None:
    with pytest.raises(ModelsTomlError, match=problem):
        imported(BOX.replace(*change))
    assert not Upstream.objects.exists()


def test_a_name_stands_once() -> None:
    with pytest.raises(ModelsTomlError, match="has that name"):
        imported(BOX + '[[upstreams]]\nname = "box"\nurl = "http://b"\n')
    with pytest.raises(ModelsTomlError, match=r"\[\[upstreams\]\]"):
        read_document("upstreams = 3")
