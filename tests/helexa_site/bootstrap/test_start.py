"""What ``serve`` waits for before it says that it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import selectors, services
from helexa_site.bootstrap import readiness
from helexa_site.bootstrap.database import prepare_database
from helexa_site.bootstrap.start import wait_for_default_model
from helexa_site.bootstrap.supervisor import StoppingError
from helexa_site.instance import instance_id
from metering.actor import COMMAND
from tests.answering_server import answering

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


def test_a_gateway_of_another_instance_is_not_waited_for(tmp_path: Path) -> None:
    """Also where it takes our key and says that all is well."""
    asked = iter(range(3))

    def ensure_wanted() -> None:
        if next(asked, None) is None:
            raise StoppingError

    health = {"/health": b'{"status": "ok", "neurons": [{}], "reasons": []}'}
    with answering(health, "another") as port, pytest.raises(StoppingError):
        readiness.wait_for_gateway(f"http://127.0.0.1:{port}", tmp_path, ensure_wanted)
    ours = instance_id(tmp_path)
    with answering(health, ours) as port:
        readiness.wait_for_gateway(f"http://127.0.0.1:{port}", tmp_path, lambda: None)
