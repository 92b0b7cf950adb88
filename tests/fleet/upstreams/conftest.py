"""Upstreams, and models that they serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet import services
from fleet.errors import CatalogueValueError
from fleet.models import CatalogueModel, Upstream
from fleet.models_toml import read_document
from metering.audit import COMMAND
from tests.fleet.api.api_support import Api, key_api, need_keys
from tests.fleet.conftest import change

SECRET = "sk-the-upstreams-own-secret-0123456789"


@pytest.fixture
def api(settings: Any) -> Api:
    need_keys(settings)
    settings.CONFIG = replace(settings.CONFIG, secret_key_is_kept=True)
    return key_api("fleet:read", "fleet:write")


def make(url: str = "http://box:8000/v1", **values: Any) -> Upstream:
    return services.upstream_create(actor=COMMAND, url=url, **{"name": "box"} | values)


@pytest.fixture
def box() -> Upstream:
    return make()


@pytest.fixture
def cloud() -> Upstream:
    return make("http://cloud/v1", name="cloud", leaves_network=True)


@pytest.fixture
def claude() -> Upstream:
    return make("http://claude", name="claude", dialect="anthropic")


def update(upstream: Upstream, **values: Any) -> None:
    for name, value in values.items():
        setattr(upstream, name, value)
    services.upstream_update(actor=COMMAND, upstream=upstream, changed_fields=list(values))


def offer(
    name: str = "far", source: str = "upstream:box/org/m:7b", **values: Any
) -> CatalogueModel:
    return services.catalogue_model_create(actor=COMMAND, name=name, source=source, **values)


def refused(model: CatalogueModel, **values: Any) -> tuple[str, str]:
    """The field that cannot hold its value, and why."""
    with pytest.raises(CatalogueValueError) as caught:
        change(model, **values)
    return caught.value.field, str(caught.value)


def imported(text: str, **options: Any) -> list[str]:
    document = read_document(text)
    return list(services.catalogue_import(actor=COMMAND, document=document, **options).lines())
