"""The id of an instance: one for each data directory, and a copy of one is another."""

from __future__ import annotations

import shutil
from pathlib import Path

from helexa_site.instance import instance_id


def test_a_copied_directory_is_another_instance(tmp_path: Path) -> None:
    """Both gateways had one id: a command took the other's port for its own."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    found = instance_id(original)
    shutil.copytree(original, copy)
    assert found is not None
    assert instance_id(copy) not in (None, found)
    assert instance_id(original.rename(tmp_path / "moved")) == found


def test_a_directory_that_is_missing_has_none(tmp_path: Path) -> None:
    assert instance_id(tmp_path / "none") is None
