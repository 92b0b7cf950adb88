"""Answers as HTML: CommonMark with GitHub's tables, struck text and alerts, and TeX as MathML.

An answer is a stranger's text, and Alpine would run what stands in attributes of its choice. So its
own HTML stays text, links lead to the web alone, images are links, and of a formula's attributes
those are left that only lay it out. Highlighters are regular expressions too, over a text that may
be written against them: code is coloured in the browser.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape, unescape
from typing import Any
from xml.etree.ElementTree import Element, tostring

from latex2mathml.converter import Converter
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

MAX_FORMULA_CHARS = 2000
DISPLAYED = {"$$": "$$", "\\[": "\\]"}
FORMULAS = {**DISPLAYED, "\\(": "\\)", "$": "$"}
MACRO = "\\newcommand"
"""A few of them expand to gigabytes."""
LAYOUT = """
    accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form
    height largeop linebreak linethickness lspace mathvariant maxsize minsize movablelimits notation
    rowlines rowspacing rspace scriptlevel separator stretchy voffset width xmlns
"""
LAYOUT_NAMES = frozenset(LAYOUT.split())
WEB = ("http://", "https://", "mailto:")
SCHEME = re.compile(r"(?:^|\W)(https?)$")
MAX_SCHEME_CHARS = 6
BARE = re.compile(r"[^\s<>]+")
AFTER_BARE = ".,;:!?'\")*_~]"
TABLE = (
    '<div class="hx-scroll" tabindex="0" role="region" aria-label="Table">'
    '<table class="hx-table">\n'
)
CODE = '<div class="pg-code"><button type="button" class="hx-button pg-copy">Copy</button>'


def html_of(text: str) -> str:
    return str(_parser().render(text))


@cache
def _parser() -> MarkdownIt:
    options = {"html": False, "linkify": False, "tasklists": False, "breaks": True}
    parser = MarkdownIt("gfm-like2", options).disable(["html_block", "html_inline"])
    parser.validateLink = lambda url: url.lower().startswith(WEB)  # type: ignore[method-assign]
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.inline.ruler.before("escape", "bare_link", _bare_link)
    interrupted = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("fence", "formula", _displayed_formula, {"alt": interrupted})
    rules: dict[str, Any] = parser.renderer.rules  # type: ignore[attr-defined]
    plain_fence = rules["fence"]
    rules |= {
        "formula": lambda tokens, at, *_: tokens[at].content,
        "table_open": lambda *_: TABLE,
        "table_close": lambda *_: "</table></div>\n",
        "link_open": lambda tokens, at, *_: _link_to(tokens[at].attrs["href"]),
        "image": _image,
        "fence": lambda *args: f"{CODE}{_reached_by_keys(plain_fence(*args))}</div>\n",
    }
    return parser


def _reached_by_keys(code: str) -> str:
    """Lines of code may be longer than the page: the keyboard scrolls them too."""
    return code.replace("<pre>", '<pre tabindex="0">', 1)


def _link_to(url: Any) -> str:
    return (
        f'<a class="hx-link" target="_blank" rel="noopener noreferrer" href="{escape(str(url))}">'
    )


def _image(tokens: Any, at: int, *_: Any) -> str:
    return f"{_link_to(tokens[at].attrs['src'])}{escape(tokens[at].content or 'image')}</a>"


def _formula(state: StateInline, silent: bool) -> bool:
    opening = next((one for one in FORMULAS if state.src.startswith(one, state.pos)), None)
    if opening is None:
        return False
    start, closing = state.pos + len(opening), FORMULAS[opening]
    end = state.src.find(closing, start, min(start + MAX_FORMULA_CHARS, state.posMax))
    if end < 0 or not state.src[start:end].strip():
        return False
    if opening == "$" and not _is_between_dollars(state.src, start, end):
        return False
    if not silent:
        state.push("formula", "math", 0).content = mathml(
            state.src[start:end], is_displayed=opening in DISPLAYED
        )
    state.pos = end + len(closing)
    return True


def _is_between_dollars(text: str, start: int, end: int) -> bool:
    """Most dollars are money: as in pandoc, a formula's touch what is between them, on one line,
    and no word outside."""
    inner = text[start:end]
    outside = text[max(0, start - 2)] + text[end + 1 : end + 2]
    is_tight = inner == inner.strip() and "\n" not in inner
    return is_tight and not any(one.isalnum() for one in outside)


def _displayed_formula(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    start = state.bMarks[start_line] + state.tShift[start_line]
    opening = state.src[start : start + 2]
    if opening not in DISPLAYED:
        return False
    start += len(opening)
    most = min(start + MAX_FORMULA_CHARS, state.eMarks[end_line - 1])
    end = state.src.find(DISPLAYED[opening], start, most)
    last = next((line for line in range(start_line, end_line) if end < state.eMarks[line]), -1)
    if end < 0 or state.src[end + 2 : state.eMarks[last]].strip():
        return False
    if not silent:
        token = state.push("formula", "math", 0)
        token.content = f"{mathml(state.src[start:end], is_displayed=True)}\n"
        state.line = last + 1
    return True


def _bare_link(state: StateInline, silent: bool) -> bool:
    if not state.src.startswith("://", state.pos) or state.linkLevel > 0:
        return False
    scheme = SCHEME.search(state.src[max(0, state.pos - MAX_SCHEME_CHARS) : state.pos])
    rest = BARE.match(state.src, state.pos + 3, state.posMax)
    if scheme is None or rest is None or not state.pending.endswith(scheme[1]):
        return False
    shown = f"{scheme[1]}://{rest[0].rstrip(AFTER_BARE)}"
    if not silent:
        state.pending = state.pending.removesuffix(scheme[1])
        state.push("link_open", "a", 1).attrs = {"href": state.md.normalizeLink(shown)}
        state.push("text", "", 0).content = shown
        state.push("link_close", "a", -1)
    state.pos += len(shown) - len(scheme[1])
    return True


def mathml(tex: str, *, is_displayed: bool) -> str:
    as_written = f'<code class="pg-tex">{escape(tex)}</code>'
    if MACRO in tex:
        return as_written
    try:
        formula = Converter(display="block" if is_displayed else "inline").convert_to_element(tex)
    except Exception:  # noqa: BLE001 - the library raises whatever it runs into
        return as_written
    for element in formula.iter():
        _keep_layout(element)
    return tostring(formula, encoding="unicode")


def _keep_layout(element: Element) -> None:
    """The library writes entities into texts, which would be escaped once more."""
    for name in {*element.keys()} - LAYOUT_NAMES:
        del element.attrib[name]
    element.text = element.text and unescape(element.text)
