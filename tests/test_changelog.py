"""``CHANGELOG.md`` is by release, newest first, and by kind of change."""

from __future__ import annotations

import re
from pathlib import Path

CHANGELOG = (Path(__file__).resolve().parent.parent / "CHANGELOG.md").read_text()
KINDS = ["Added", "Changed", "Fixed", "Security"]


def test_releases_follow_what_is_unreleased_newest_first() -> None:
    first, *releases = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert first == "Unreleased"
    versions = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - \d{4}-\d\d-\d\d", one) for one in releases]
    numbers = [tuple(map(int, version.groups())) for version in versions if version]
    assert len(numbers) == len(releases)
    assert numbers == sorted(numbers, reverse=True)


def test_each_release_has_its_changes_by_kind_in_this_order() -> None:
    """``scripts/release`` refuses unreleased entries that are not sorted yet."""
    for release in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[2:]:
        kinds = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], release.splitlines()[0]
        before_kinds = release.partition("\n### ")[0]
        assert "\n- " not in before_kinds, "an entry belongs under one of the kinds"
