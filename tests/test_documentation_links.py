"""Links between the pages of this repository lead to a file that is there and a heading in it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "acp", "packaging")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")),
        *ROOT.glob("*.md"),
    )
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


def anchors_of(text: str) -> set[str]:
    """Returns the anchors that GitHub and Forgejo make of headings."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {word.replace(" ", "-") for word in words}


def broken_links(page: str, text: str) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", text)):
        where, _, anchor = link.partition("#")
        if "://" in where or where.startswith("mailto:"):
            continue
        target = (ROOT / page).parent / where if where else ROOT / page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text())
        ):
            broken.append(link)
    return broken


def test_links_lead_somewhere() -> None:
    broken = {page: broken_links(page, (ROOT / page).read_text()) for page in PAGES}
    assert {page: links for page, links in broken.items() if links} == {}
