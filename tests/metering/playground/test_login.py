"""Who asks by the login's cookie, from whose budget, without a key; and an answer's Markdown, of
which nothing becomes an attribute or element of its choice."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.test import Client

from inference.gateway.request.identify import LOGIN, Login
from metering import services
from metering.audit import COMMAND
from metering.models import Account, ApiKey, AuditEntry
from metering.playground.login import path_by_login, with_login
from metering.playground.markdown import MAX_FORMULA_CHARS, html_of
from metering.playground.views import MAX_MARKDOWN_BYTES
from metering.principal import RateLimits, Scope
from metering.services import Cap
from tests.cases import each_case
from tests.metering.callers import person


@pytest.fixture
def account(db: None) -> Account:
    services.account_create(actor=COMMAND, name="theirs")
    return services.account_create(actor=COMMAND, name="ours")


def offered(client: Client) -> list[str]:
    page = client.get("/playground/").content.decode()
    found = re.search(r'<script id="playground-settings"[^>]*>(.*?)</script>', page)
    return list(json.loads(found[1])["accounts"]) if found else []


def asked(client: Client, account: str, *, method: str = "POST", **headers: str) -> Login:
    """The login of a request that the page's script sends, with other headers or without some."""
    token = re.search(r'data-csrf="(\w+)"', client.get("/playground/").text)
    cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
    sent = {"host": "testserver", "cookie": cookies, "content-length": "999999"}
    sent |= {"x-csrftoken": token[1] if token else "", **headers}
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 80),
        "path": "/playground/v1/chat/completions",
        "query_string": f"account={account}".encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items() if value],
    }
    known = async_to_sync(with_login)(scope, get_asgi_application())
    assert {**known, LOGIN: None} == {**scope, LOGIN: None}, "the request itself is as it was"
    login: Login = known[LOGIN]
    return login


def refusal(login: Login) -> tuple[int, str]:
    assert login.principal is None and login.refusal is not None
    return login.refusal.status, login.refusal.code


def test_a_login_is_good_for_ones_own_accounts_from_the_page_itself(account: Account) -> None:
    for path in ("/v1/chat/completions", "/v1/models", "/v1/models/org/name"):
        assert path_by_login(f"/playground{path}") == path
        assert path_by_login(path) is None
    for path in ("/playground/v1/responses", "/playground/v1/batches", "/playground/"):
        assert path_by_login(path) is None
    account.max_concurrent, account.weight = 3, 2
    account.save()
    cap = Cap(unit="micro_usd", cap=5, window="balance")
    budget = services.budget_create(actor=COMMAND, account=account, cap=cap)
    client = person("ann", account, role="member")
    assert offered(client) == ["ours"]
    num_entries = AuditEntry.objects.count()
    for method in ("POST", "GET"):
        login = asked(client, "ours", method=method)
        assert login.username == "ann" and login.principal is not None
        principal = login.principal
        assert (principal.account, principal.key, principal.weight) == ("ours", "", 2)
        assert (principal.scopes, principal.budgets) == ({Scope.INFERENCE}, (budget.pk,))
        assert principal.account_limits == RateLimits(max_concurrent=3)
    assert not ApiKey.objects.exists() and AuditEntry.objects.count() == num_entries
    for named in ("theirs", "nowhere", "", "anonymous"):
        assert refusal(asked(client, named)) == (403, "account_not_allowed")
    viewer = person("vic", account, role="viewer")
    assert offered(viewer) == []
    assert refusal(asked(viewer, "ours", **{"x-csrftoken": ""})) == (403, "origin_not_allowed")
    opal = person("opal", Account.objects.get(name="theirs"), is_staff=True)
    names = offered(opal)
    assert names[0] == "theirs" and "ours" in names and "anonymous" not in names
    login = asked(opal, "ours")
    assert login.principal is not None and login.principal.account == "ours"
    token = client.cookies["csrftoken"].value
    elsewhere = (
        *({"x-csrftoken": ""}, {"x-csrftoken": "a" * 32}, {"host": "elsewhere.example"}),
        {"origin": "https://elsewhere.example"},
    )
    for headers, refused in (
        *((headers, (403, "origin_not_allowed")) for headers in elsewhere),
        ({"cookie": f"csrftoken={token}"}, (401, "invalid_api_key")),
    ):
        for method in ("POST", "GET"):
            login = asked(client, "ours", method=method, **headers)
            assert refusal(login) == refused, (headers, method)
    identify = "/playground/identify?account=ours"
    answer = client.post(identify)
    assert (answer.status_code, answer.content) == (204, b"")
    assert Client().post(identify)["Location"].startswith("/login/")
    Account.objects.filter(name="ours").update(enabled=False)
    assert refusal(asked(opal, "ours")) == (403, "account_not_allowed")
    User.objects.filter(username="ann").update(is_active=False)
    assert refusal(asked(client, "ours", **{"x-csrftoken": token})) == (401, "invalid_api_key")


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
