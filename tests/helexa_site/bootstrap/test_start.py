"""What ``serve`` waits for before it says that it is ready."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet import selectors, services
from helexa_site.bootstrap import readiness
from helexa_site.bootstrap.database import prepare_database
from helexa_site.bootstrap.start import wait_for_default_model
from metering.actor import COMMAND

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_catalogue_cache() -> Iterator[None]:
    selectors.catalogue_cache_clear()
    yield
    selectors.catalogue_cache_clear()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses at which somebody waited for an answer."""
    asked: list[str] = []
    monkeypatch.setattr(readiness, "wait_for_answer", lambda url, *_: asked.append(url))
    return asked


def start() -> None:
    wait_for_default_model("http://host", "redis://host", lambda: None)


def test_the_default_model_is_waited_for_while_it_is_pinned(waits: list[str]) -> None:
    services.default_model_ensure(actor=COMMAND)
    start()
    assert waits == ["http://host"]


@pytest.mark.parametrize(
    ("change", "told"),
    [({"pinned": False}, "is loaded when somebody asks"), ({"enabled": False}, "is not offered")],
)
def test_a_model_that_nobody_loads_is_not_waited_for(
    change: dict[str, bool], told: str, waits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = services.default_model_ensure(actor=COMMAND)
    model.assign(change)
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=list(change))
    start()
    assert waits == []
    assert told in capsys.readouterr().out


def test_a_default_model_that_was_deleted_is_neither_put_back_nor_waited_for(
    waits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_database(with_model=True)
    model = selectors.model_known(readiness.DEFAULT_MODEL)
    services.catalogue_model_delete(actor=COMMAND, model=model)
    prepare_database(with_model=True)
    start()
    assert selectors.catalogue_list() == ()
    assert waits == []
    assert "is not offered" in capsys.readouterr().out
