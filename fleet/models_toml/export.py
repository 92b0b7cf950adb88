"""Writing the catalogue as a models.toml that reads back as the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.catalogue import SETTINGS, CatalogueSettings
from fleet.models_toml.entry import OUR_HARNESS
from fleet.models_toml.keys import KEY_OF_SETTING, TABLES, to_toml, toml_value
from fleet.models_toml.state import CatalogueState
from fleet.models_toml.upstreams import written_upstream

HEAD = "# The catalogue. What an entry leaves out has its default.\n"


def write_document(state: CatalogueState) -> str:
    parts = [HEAD]
    parts += [written_upstream(state.upstreams[name]) for name in sorted(state.upstreams)]
    parts += [_model(name, state.models[name]) for name in sorted(state.models)]
    if state.aliases:
        lines = [
            f"{toml_value(alias)} = {toml_value(target)}"
            for alias, target in sorted(state.aliases.items())
        ]
        parts.append("\n".join(["[aliases]", *lines, ""]))
    return "\n".join(parts)


def _model(name: str, settings: CatalogueSettings) -> str:
    head = ["[[models]]", f"id = {toml_value(name)}", f"harness = {toml_value(OUR_HARNESS)}"]
    return "\n".join([*head, *_settings(settings), ""])


def _settings(settings: CatalogueSettings) -> Iterator[str]:
    """The settings that differ from the defaults; a table on one line."""
    plain = CatalogueSettings(source="")
    written = {
        KEY_OF_SETTING[name]: to_toml(name, getattr(settings, name))
        for name in SETTINGS
        if getattr(settings, name) != getattr(plain, name)
    }
    for key, value in written.items():
        if "." not in key:
            yield f"{key} = {value}"
    for table in TABLES:
        inner = [
            f"{key.partition('.')[2]} = {value}"
            for key, value in written.items()
            if key.startswith(f"{table}.")
        ]
        if inner:
            yield f"{table} = {{ {', '.join(inner)} }}"
