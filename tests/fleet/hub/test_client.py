"""Requests to the hub, and the operator's messages when it does not answer."""

from __future__ import annotations

import threading
import time

import pytest

from fleet.errors import HubUnavailableError, RepositoryUnknownError
from fleet.hub.client import HubClient
from fleet.hub.offers import offers_of
from tests.fleet.hub.conftest import NO_HUB, OVERLOAD, SILENCE

pytestmark = pytest.mark.usefixtures("hub")


def test_a_repository_of_ggufs_with_sizes_and_architecture() -> None:
    repository = HubClient().repository("org/tiny-gguf")
    assert repository.gguf_architecture == "llama"
    assert [offer.file for offer in offers_of(repository)] == ["Q4_K_M", "Q8_0"]
    assert [offer.num_bytes for offer in offers_of(repository)] == [4_000_000_000, 8_000_000_000]


def test_a_repository_of_ggufs_with_an_mmproj_file() -> None:
    offers = offers_of(HubClient().repository("org/images-gguf"))
    assert [offer.projector for offer in offers] == ["mmproj-F16.gguf"] * 2
    assert [offer.num_bytes for offer in offers] == [5_000_000_000, 9_000_000_000]
    assert all(offer.problem is None for offer in offers)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("org/dense", None),
        ("org/quantised", "quantised with 'awq'"),
        ("org/strange", "architecture is 'reformer'"),
        ("org/images", None),
        ("org/other-images", "preprocessor_config.json: patch_size is 14"),
        ("org/lower-case", None),
    ],
)
def test_safetensors_are_judged_by_their_config(name: str, problem: str | None) -> None:
    repository = HubClient().repository(name)
    found = repository.safetensors_problem
    assert found is None if problem is None else problem in (found or "")
    assert not repository.is_gated and repository.access_problem is None


def test_a_gated_repository_needs_a_token_and_may_run() -> None:
    repository = HubClient().repository("org/gated")
    assert repository.is_gated and repository.safetensors_problem is None
    assert "needs a token that was granted access" in (repository.access_problem or "")
    (offer,) = offers_of(repository)
    assert offer.problem is None and offer.access_problem == repository.access_problem


def test_the_search() -> None:
    (found,) = HubClient().search("tiny")
    assert (found.name, found.num_downloads, found.num_likes) == ("org/tiny-gguf", 7, 3)


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("org/nothing", None, "no repository org/nothing"),
        ("org/dense", "elsewhere", "no revision 'elsewhere'"),
        ("a b", None, "is not a repository: write org/name"),
    ],
)
def test_what_is_not_there_is_reported(name: str, revision: str | None, message: str) -> None:
    with pytest.raises(RepositoryUnknownError, match=message):
        HubClient().repository(name, revision)


def test_a_hub_that_cannot_be_reached_is_reported_with_what_to_do() -> None:
    nowhere = HubClient(endpoint="http://127.0.0.1:9")
    for ask in (nowhere.repository, nowhere.search):
        with pytest.raises(HubUnavailableError, match="Models can be added by name all the same"):
            ask("org/dense")


@pytest.mark.parametrize(
    ("words", "timeout_s", "message"),
    [(SILENCE, 0.2, "cannot be reached"), (OVERLOAD, 60.0, "refused to answer: .*503")],
)
def test_a_search_waits_for_one_answer_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, words: str, timeout_s: float, message: str
) -> None:
    asked_to_wait_s: list[float] = []
    sleep = time.sleep

    def note(seconds: float) -> None:
        is_of_the_search = threading.current_thread().name == "deadline"
        asked_to_wait_s.append(seconds) if is_of_the_search else sleep(seconds)

    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", note)
    monkeypatch.setattr("fleet.hub.client.TIMEOUT_S", timeout_s)
    with pytest.raises(HubUnavailableError, match=message):
        HubClient().search(words)
    assert not asked_to_wait_s


def test_what_is_no_hub_is_reported() -> None:
    for ask in (HubClient().repository, HubClient().search):
        with pytest.raises(HubUnavailableError, match="is no hub"):
            ask(NO_HUB)
