"""The text of a web page. Pure."""

from __future__ import annotations

from html.parser import HTMLParser

UNSEEN = frozenset({"script", "style", "template", "svg", "noscript", "head"})
BLOCKS = frozenset(
    {"p", "div", "section", "article", "li", "ul", "ol", "table", "tr", "pre", "br", "blockquote"}
    | {f"h{level}" for level in range(1, 7)}
)


def page_text(html: str) -> str:
    """One paragraph a line; links keep their address."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).splitlines())
    return "\n".join(line for line in lines if line)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unseen: list[str] = []
        self._links: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in UNSEEN:
            self._unseen.append(tag)
        elif tag in BLOCKS:
            self.pieces.append("\n")
        elif tag == "a":
            self._links.append(dict(attrs).get("href"))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            while self._unseen.pop() != tag:
                pass
        elif tag in BLOCKS:
            self.pieces.append("\n")
        elif tag == "a" and self._links:
            link = self._links.pop()
            if link and link.startswith("http") and not self._unseen:
                self.pieces.append(f" ({link})")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.pieces.append(data)
