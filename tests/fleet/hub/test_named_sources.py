"""Named sources at every door: listed, searched and added from, with the default for bare names."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from django.core.management import CommandError

from fleet import services
from fleet.catalogue.rules import check_source
from fleet.errors import (
    CatalogueValueError,
    HubUnavailableError,
    RepositoryUnknownError,
    UnknownSourceError,
)
from fleet.hub.client import HubClient
from fleet.hub.offers import offers_of
from fleet.models import CatalogueModel
from fleet.models_toml import read_document
from metering.actor import COMMAND
from tests.fleet.commands.conftest import RunCommand, run_command
from tests.inference.loading.fake_hub import FakeHub, serving
from tests.proxies import SOCKS, set_proxies

__all__ = ["run_command"]
pytestmark = pytest.mark.django_db(transaction=True)
SOURCES = "HELEXA_SOURCES"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The source ``lab``, which asks for a token."""
    files = {"tiny-Q4_0.gguf": b"x" * 5_000_000}
    with serving(FakeHub(files, commit="b" * 40, token="lab-secret")) as hub:
        monkeypatch.setenv("HF_TOKEN", "hf-secret")
        monkeypatch.setenv("LAB_TOKEN", "lab-secret")
        monkeypatch.setenv(SOURCES, f"lab={hub.url} token=LAB_TOKEN")
        yield hub


def test_a_source_is_listed_and_searched_with_its_token(
    lab: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = HubClient("lab").repository("org/tiny")
    (offer,) = offers_of(repository)
    assert offer.settings(repository, None)["source"] == "lab:org/tiny"
    set_proxies(monkeypatch, ALL_PROXY=SOCKS)
    assert [one.name for one in HubClient("lab").search("tiny")] == ["org/tiny"]
    assert lab.tokens == {"Bearer lab-secret"}
    monkeypatch.setenv(SOURCES, "lab=http://lab.example")  # this machine is asked directly
    for ask in (HubClient("lab").search, HubClient("lab").repository):
        with pytest.raises(HubUnavailableError, match="from here: ALL_PROXY names a proxy"):
            ask("org/tiny")
    monkeypatch.setenv(SOURCES, f"lab={lab.url} token=LAB_TOKEN")
    monkeypatch.delenv("LAB_TOKEN")
    with pytest.raises(RepositoryUnknownError, match=r"^The source lab has no repository org/tiny"):
        HubClient("lab").repository("org/tiny")
    assert lab.tokens == {"Bearer lab-secret", None}, "Hugging Face's token is nobody else's"


def test_an_unknown_source_is_refused_with_those_that_are_known(
    lab: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sources_of(text: str) -> list[str]:
        document = read_document(text)
        assert not document.problems, document.problems
        return [model.settings.source for model in document.models]

    with pytest.raises(
        UnknownSourceError, match=r"'other' .* huggingface, lab, and HELEXA_SOURCES"
    ):
        HubClient("other")
    for source, why in (
        ("other:org/name", "one of huggingface:, lab:, path:, pypi:"),
        ("lab:name", "lab:org/name, as in lab:"),
    ):
        with pytest.raises(CatalogueValueError, match=why):
            check_source(source)
    model = services.catalogue_model_create(actor=COMMAND, name="m", source="org/tiny")
    assert model.source == "huggingface:org/tiny", "of a bare name, where no source is the default"
    one, two = '[[models]]\nid = "org/one"\n', '[[models]]\nid = "two"\nsource = "org/two"\n'
    assert sources_of(f'{one}source = "lab"\n{two}') == ["lab:org/one", "huggingface:org/two"]
    (problem,) = read_document(f'{one}source = "other"\n').problems
    assert "one of huggingface:, lab:, path:, pypi:" in problem.message
    monkeypatch.setenv(SOURCES, f"lab={lab.url} token=LAB_TOKEN default")
    assert sources_of(one + two) == ["lab:org/one", "lab:org/two"]


def test_a_model_is_searched_for_and_added_by_commands(
    run_command: RunCommand, publish, lab: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish()
    (found,) = json.loads(run_command("models", "search", "tiny", "--source", "lab", "--json"))
    assert found["name"] == "org/tiny"
    assert "tiny-q4_0 is offered" in run_command("models", "add", "lab:org/tiny")
    for words, reason in (
        (("add", "other:org/tiny"), "there is huggingface, lab"),
        (("search", "tiny", "--source", "other"), "there is huggingface, lab"),
        (("add", "m", "other:org/tiny"), "one of huggingface:, lab:"),
        (("pull", "other:org/tiny"), "one of huggingface:, lab:"),
    ):
        with pytest.raises(CommandError, match=reason):
            run_command("models", *words)
    # Bare names are of the default source.
    monkeypatch.setenv(SOURCES, f"lab={lab.url} token=LAB_TOKEN default")
    run_command("models", "add", "again", "org/tiny")
    drafting = ("--set", "draft_model=org/small", "--set", "speculation=draft_model")
    run_command("models", "change", "again", *drafting)
    found = {model.name: model.source for model in CatalogueModel.objects.all()}
    assert found == {"tiny-q4_0": "lab:org/tiny", "again": "lab:org/tiny"}
    assert CatalogueModel.objects.get(name="again").draft_model == "lab:org/small"
    assert HubClient().repository("org/tiny").scheme == "lab"
