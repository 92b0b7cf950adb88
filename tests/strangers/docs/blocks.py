"""The fenced blocks of the documentation, each with its mark.

    <!-- run: serve -->            the block is executed by a test that names that scenario
    <!-- not run: a diagram -->    it is not, for that reason
    ```sh
    …

The mark is the line before the fence. Readers of docs/clients.md are shown the settings that are
tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY_DIR = Path(__file__).resolve().parents[3]
PAGES = ("README.md", "acp/README.md", *(f"docs/{name}" for name in ("*.md", "*/*.md")))
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*) *$")
MARK = re.compile(r"^ *<!-- (?P<kind>run|not run): (?P<words>.+?) -->$")
SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """``line`` is the fence's, from 1. ``scenario`` and ``reason`` are from its mark; both are
    empty where it has none."""

    page: str
    line: int
    language: str
    text: str
    scenario: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks_of(page, text_of(page))]


def pages() -> list[str]:
    found = {path for pattern in PAGES for path in REPOSITORY_DIR.glob(pattern)}
    return sorted(path.relative_to(REPOSITORY_DIR).as_posix() for path in found)


def text_of(page: str) -> str:
    return (REPOSITORY_DIR / page).read_text()


def blocks_of(page: str, text: str) -> Iterator[Block]:
    lines = text.splitlines()
    opened: re.Match[str] | None = None
    opened_at = 0
    for number, line in enumerate(lines, start=1):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            opened, opened_at = fence, number
            continue
        mark = MARK.match(lines[opened_at - 2]) if opened_at > 1 else None
        kind, words = (mark["kind"], mark["words"]) if mark else ("", "")
        indent = len(opened["indent"])
        yield Block(
            page=page,
            line=opened_at,
            language=opened["language"],
            text="".join(f"{inner[indent:]}\n" for inner in lines[opened_at : number - 1]),
            scenario=words if kind == "run" else "",
            reason=words if kind == "not run" else "",
        )
        opened = None


def inline_commands(text: str) -> list[str]:
    prose, is_fenced = [], False
    for line in text.splitlines():
        is_fence = FENCE.match(line) is not None
        is_fenced ^= is_fence
        if not is_fence and not is_fenced:
            prose.append(line)
    spans = (" ".join(span.split()) for span in SPAN.findall("\n".join(prose)))
    return [span for span in spans if re.match(r"(python3 )?manage\.py |scripts/", span)]


def commands_of(block: Block) -> list[str]:
    """The commands of a block of shell, continued lines joined, without comments."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    lines = (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


PAGE = "docs/clients.md"
ADDRESS = "http://127.0.0.1:31313"


def settings_of(scenario: str, *, url: str, model: str, key: str) -> str:
    (block,) = (one for one in all_blocks() if one.scenario == scenario and one.page == PAGE)
    return filled_in(block.text, url=url, model=model, key=key)


def filled_in(text: str, *, url: str, model: str, key: str) -> str:
    """``MODEL`` and ``KEY`` stand alone, not in the names of variables."""
    text = text.replace(ADDRESS, url)
    for placeholder, value in (("MODEL", model), ("KEY", key)):
        text = re.sub(rf"(?<![A-Z_]){placeholder}(?![A-Z_])", value, text)
    return text


def exported(text: str) -> dict[str, str]:
    lines = [line.removeprefix("export ") for line in text.splitlines() if "export " in line]
    return dict(word.split("=", 1) for line in lines for word in line.split())
