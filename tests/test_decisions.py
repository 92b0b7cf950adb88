"""``docs/decisions/README.md`` lists every decision record and every number that has none."""

from __future__ import annotations

import re
from pathlib import Path

DECISIONS = Path(__file__).resolve().parent.parent / "docs" / "decisions"
INDEX = (DECISIONS / "README.md").read_text()


def test_every_record_is_listed_by_its_number_and_title() -> None:
    titles = {path.name: path.read_text().splitlines()[0] for path in DECISIONS.glob("0*.md")}
    rows = {
        name: f"# {number}. {title}"
        for number, title, name in re.findall(r"\| (\d+) \| \[(.+)\]\((.+)\) \|", INDEX)
    }
    assert rows == titles
    assert all(int(name[:4]) == int(title.split(".")[0][2:]) for name, title in titles.items())


def test_no_number_is_missing_without_a_word() -> None:
    (unused,) = re.findall(r"^\| ([\d, ]+) \| not used", INDEX, re.MULTILINE)
    numbers = [int(path.name[:4]) for path in DECISIONS.glob("0*.md")]
    numbers += [int(number) for number in unused.split(", ")]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
