"""An answer's Markdown becomes HTML, and nothing of it an attribute or element of its choice."""

from __future__ import annotations

import re

from django.test import Client

from metering.playground.markdown import MAX_FORMULA_CHARS, html_of
from metering.playground.views import MAX_MARKDOWN_BYTES
from tests.cases import each_case
from tests.metering.callers import person

PLACE = "/playground/markdown"
MATHML = re.compile(r"<math[^>]*>(.*?)</math>", re.DOTALL)


def shown(text: str) -> str:
    """The HTML without what each link and formula has."""
    html = html_of(text).strip()
    html = html.replace(' class="hx-link" target="_blank" rel="noopener noreferrer"', "")
    return MATHML.sub(lambda found: f"<math>{re.sub(r'</?mrow>', '', found[1])}</math>", html)


MARKDOWN = {
    "**bold** _slanted_ ~~gone~~": "<p><strong>bold</strong> <em>slanted</em> <s>gone</s></p>",
    "one\ntwo": "<p>one<br />\ntwo</p>",
    "- a\n  1. b": "<ul>\n<li>a\n<ol>\n<li>b</li>\n</ol>\n</li>\n</ul>",
    "[x](https://e.org/?a=1&b)": '<p><a href="https://e.org/?a=1&amp;b">x</a></p>',
    "![x](https://e.org/x.png)": '<p><a href="https://e.org/x.png">x</a></p>',
    "**https://e.org/a_b_c**.": (
        '<p><strong><a href="https://e.org/a_b_c">https://e.org/a_b_c</a></strong>.</p>'
    ),
    "see https://e.org/(a).": '<p>see <a href="https://e.org/(a">https://e.org/(a</a>).</p>',
    "| a |\n|---|\n| `x` |": (
        '<div class="hx-scroll" tabindex="0" role="region" aria-label="Table">'
        '<table class="hx-table">\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n'
        "<tbody>\n<tr>\n<td><code>x</code></td>\n</tr>\n</tbody>\n</table></div>"
    ),
    "xhttps://e.org, http://": "<p>xhttps://e.org, http://</p>",
    "```c++ x\na < b\n```": (
        '<div class="pg-code"><button type="button" class="hx-button pg-copy">Copy</button>'
        '<pre tabindex="0"><code class="language-c++">a &lt; b\n</code></pre>\n</div>'
    ),
}
FORMULAS = {
    "$a<b$": "<p><math><mi>a</mi><mo>&lt;</mo><mi>b</mi></math></p>",
    r"\(10\)": "<p><math><mn>10</mn></math></p>",
    "$$\nx\n+ 3\n$$": "<math><mi>x</mi><mo>+</mo><mn>3</mn></math>",
    "so\n\\[ x\n\\]\nis": "<p>so</p>\n<math><mi>x</mi></math>\n<p>is</p>",
    "- $$x$$ y": "<ul>\n<li><math><mi>x</mi></math> y</li>\n</ul>",
    "$5 and $6, $5-$6, US$7 or A$8": "<p>$5 and $6, $5-$6, US$7 or A$8</p>",
    "$x\n$": "<p>$x<br />\n$</p>",
    "$$$": "<p>$$$</p>",
    "$$\nx": "<p>$$<br />\nx</p>",
    r"`$x$` \$x\$": "<p><code>$x$</code> $x$</p>",
    r"$\frac$": '<p><code class="pg-tex">\\frac</code></p>',
    f"${'{' * 1990}$": f'<p><code class="pg-tex">{"{" * 1990}</code></p>',
    r"$\newcommand{\a}{b}\a$": r'<p><code class="pg-tex">\newcommand{\a}{b}\a</code></p>',
    f"${'x' * MAX_FORMULA_CHARS}$": f"<p>${'x' * MAX_FORMULA_CHARS}$</p>",
}
HOSTILE = {
    '<b x-init="go()">x</b>': ("<p>&lt;b x-init=&quot;go()&quot;&gt;x&lt;/b&gt;</p>"),
    "<script>go()</script>": "<p>&lt;script&gt;go()&lt;/script&gt;</p>",
    "[x](javascript:go) [y](/admin/logout/) [z](data:text/html,x)": (
        "<p>[x](javascript:go) [y](/admin/logout/) [z](data:text/html,x)</p>"
    ),
    '[x](https://e.org "t\\" x-init=\\"go()")': '<p><a href="https://e.org">x</a></p>',
    '[x](<https://e.org" x-init="go()>)': (
        '<p><a href="https://e.org%22%20x-init=%22go()">x</a></p>'
    ),
    '``` "x-init="go()\nx\n```': (
        '<div class="pg-code"><button type="button" class="hx-button pg-copy">Copy</button>'
        '<pre tabindex="0"><code class="language-&quot;x-init=&quot;go()">x\n</code></pre>\n</div>'
    ),
    r"$\text{<img>} <b x$": (
        "<p><math><mtext>&lt;img&gt;</mtext><mo>&lt;</mo><mi>b</mi><mi>x</mi></math></p>"
    ),
    r"$\href{javascript:go}{x} \class{y}{z} \style{color:red}{w}$": (
        "<p><math><mi>x</mi><mi>z</mi><mi>w</mi></math></p>"
    ),
}


@each_case(("text", "html"), [*MARKDOWN.items(), *FORMULAS.items(), *HOSTILE.items()])
def test_answers(text: str, html: str) -> None:
    """What is no formula, or is not understood, stays as it was written."""
    assert shown(text) == html


def test_who_is_logged_in_gets_it(db: None) -> None:
    def answer(client: Client, text: str) -> tuple[int, str]:
        got = client.post(PLACE, data=text.encode(), content_type="text/plain")
        return got.status_code, got.content.decode()

    ann = person("ann")
    assert answer(ann, "*Grüße*") == (200, "<p><em>Grüße</em></p>\n")
    assert answer(ann, "é" * (MAX_MARKDOWN_BYTES // 2))[0] == 200
    status, body = answer(ann, "é" * (MAX_MARKDOWN_BYTES // 2) + "x")
    assert status == 413 and "shown as it is" in body
    assert answer(Client(), "x")[0] == 401
    assert ann.get(PLACE).status_code == 405
