"""The contexts of the templates ``fleet/model_home.html`` and ``fleet/neuron_home.html``."""

from __future__ import annotations

from typing import Any

from fleet.dashboard.board import download_row
from fleet.dashboard.homes import model_home, neuron_home
from fleet.models import CatalogueModel, Neuron
from fleet.overview import fleet_overview


def model_context(model: CatalogueModel) -> dict[str, Any]:
    settings = model.settings()
    home = model_home(fleet_overview(), model.name, settings.base or "")
    return {"home": home, "is_pinned": settings.pinned, "may_try": settings.task == "text"}


def neuron_context(neuron: Neuron) -> dict[str, Any]:
    overview = fleet_overview()
    downloads = [one for one in overview.downloads if one.neuron == neuron.name]
    return {
        "neuron_row": neuron_home(overview, neuron.name),
        "downloads": list(map(download_row, downloads)),
    }
