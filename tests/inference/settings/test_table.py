"""The table of settings: complete, documented, and right about each setting's values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helexa_site.config import NAMED_AS_SETTINGS
from inference.settings import gateway, installation, neuron, storage
from inference.settings.kinds import WholeNumber
from inference.settings.setting import Setting, SettingError
from inference.settings.table import (
    NAMES,
    OTHERS,
    PREFIX,
    SETTINGS,
    check_settings,
    refusals,
    unknown_names,
    with_table,
)
from tests.cases import each_case
from tests.inference.settings.samples import accepted, refused

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("helexa_site", "fleet", "inference", "metering")
OTHER_SOURCES = ("acp", "benchmarks", "packaging", "scripts", "tests", "docs", ".ci")
NAME = re.compile(r"(?<![A-Z_])HELEXA_[A-Z_]*[A-Z](?![A-Z_])")
MACRO = re.compile(r"\.(h|cpp|cu)$")
READ = re.compile(r"""environ(ment)?(\.get\(|\[)["'](HELEXA|REDIS|DATABASE)_\w+["'](?!\] =)""")
NO_SETTINGS = {
    # misspelt by tests
    *("HELEXA_ALOW_ANONYMOUS", "HELEXA_MAX_BODY_BYTE", "HELEXA_COLOUR", "HELEXA_MAX_IMAGE"),
    "HELEXA_MULTIPLIES_PAIRS",  # a macro of the native code, named by a decision
    "HELEXA_KERNEL_STRIDE",  # how many kernels a test compiles
}
MODULES = (storage, gateway, neuron, installation)
OF_LIBRARIES = {
    *("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "CC", "CXX"),
    *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_PROTOCOL"),
}
"""Read by those libraries, or by all who start a compiler."""
EACH = each_case("setting", SETTINGS, ids=lambda setting: setting.name)


def sources(*folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and not MACRO.search(path.name) and "__pycache__" not in path.parts:
                try:
                    yield path.relative_to(ROOT), path.read_text()
                except UnicodeDecodeError:
                    continue


def test_every_variable_that_anything_names_is_in_the_table_or_has_a_reason() -> None:
    named = {
        (str(path), name)
        for path, text in sources(*PACKAGES, *OTHER_SOURCES)
        for name in NAME.findall(text)
    }
    assert len(named) > 100, "the sources were not found"
    unknown = {
        (path, name)
        for path, name in named
        if name not in NAMES | NO_SETTINGS and not name.startswith(tuple(OTHERS))
    }
    assert not unknown


def test_every_setting_is_read_through_the_table_and_no_variable_beside_it() -> None:
    code = {
        str(path): text
        for path, text in sources(*PACKAGES)
        if path.suffix == ".py" and path.parts[:2] != ("inference", "settings")
    }
    # The first has set it itself; the second restores a database that the variable has to name.
    assert {path for path, text in code.items() if READ.search(text)} == {
        "helexa_site/bootstrap/serve.py",
        "helexa_site/backup/commands.py",
    }
    constants = {
        value.name: name
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, Setting)
    }
    assert constants.keys() == NAMES, "a module of settings is not in the table"
    used = {word for text in code.values() for word in re.findall(r"\b([A-Z_]+)\.", text)}
    used |= {name.upper() for name in NAMED_AS_SETTINGS}
    unused = {name for name, constant in constants.items() if constant not in used}
    assert unused == OF_LIBRARIES


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "operating" / "settings.md").read_text()
    assert with_table(page) == page, (
        "write it anew: python -m inference.settings.table docs/operating/settings.md"
    )


def test_names_are_unique_and_each_setting_reports_what_it_is() -> None:
    assert len(NAMES) == len(SETTINGS)
    for setting in SETTINGS:
        assert setting.doc and setting.readers and setting.kind.rule, setting.name
        assert "|" not in setting.doc + setting.kind.rule + setting.default_words, setting.name
        assert setting.name.startswith(PREFIX) or not setting.is_internal


@EACH
def test_values_within_the_bounds_are_accepted(setting: Setting[Any]) -> None:
    assert setting.read({}) == setting.default
    for word in accepted(setting):
        check_settings({setting.name: word})


@EACH
def test_values_outside_are_refused_with_the_name_and_the_rule(setting: Setting[Any]) -> None:
    for word in refused(setting):
        (error,) = refusals({setting.name: word})
        assert str(error).startswith(setting.name) and setting.kind.rule in str(error)
        assert "\n" not in str(error)
        if setting.is_secret:
            assert str(error) == f"{setting.name} is not {setting.kind.rule}"
        with pytest.raises(SettingError, match=setting.name):
            check_settings({setting.name: word})


@given(st.data())
def test_a_whole_number_is_accepted_between_its_bounds_alone(data: st.DataObject) -> None:
    numbers = [setting for setting in SETTINGS if isinstance(setting.kind, WholeNumber)]
    setting = data.draw(st.sampled_from(numbers))
    value = data.draw(st.integers() | st.integers(setting.kind.minimum, setting.kind.maximum))
    is_within = setting.kind.minimum <= value <= setting.kind.maximum
    assert len(list(refusals({setting.name: str(value)}))) == (0 if is_within else 1)
    if is_within:
        assert setting.read({setting.name: str(value)}) == value


@given(st.text(), st.sampled_from(SETTINGS))
def test_any_text_is_read_or_refused(text: str, setting: Setting[Any]) -> None:
    for error in refusals({setting.name: text}):
        assert setting.name in str(error)


def test_an_unknown_name_comes_with_the_nearest_one() -> None:
    environment = {
        "HELEXA_MAX_BODY_BYTE": "1",
        "HELEXA_COLOUR": "red",
        "HELEXA_ACP_MODEL": "tiny",
        "HELEXA_URL": "http://box",
        "PATH": "/bin",
    }
    assert list(unknown_names(environment)) == [
        ("HELEXA_COLOUR", None),
        ("HELEXA_MAX_BODY_BYTE", "HELEXA_MAX_BODY_BYTES"),
    ]
