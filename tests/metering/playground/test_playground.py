"""Who asks by the login's cookie, from whose budget, without a key; an answer's Markdown, of which
nothing becomes an attribute or element of its choice; and conversations, which are kept for their
owner alone, within bounds, and go out as files."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.test import Client

from inference.gateway.request.identify import LOGIN, Login
from metering import services
from metering.audit import COMMAND
from metering.models import Account, ApiKey, AuditEntry, Budget
from metering.playground import conversations
from metering.playground.login import path_by_login, with_login
from metering.playground.markdown import MAX_FORMULA_CHARS, html_of
from metering.playground.models import Conversation
from metering.playground.views import MAX_MARKDOWN_BYTES
from metering.principal import RateLimits, Scope
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
    budget = Budget.objects.create(account=account, unit="micro_usd", cap=5)
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


LINKS = "[x](javascript:go) [y](/admin/logout/) [z](data:text/html,x)"
CODE = (
    '<div class="pg-code"><button type="button" class="hx-button pg-copy">Copy</button>'
    '<pre tabindex="0"><code class="language-{}">{}\n</code></pre>\n</div>'
)
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
    "```c++ x\na < b\n```": CODE.format("c++", "a &lt; b"),
    # What is no formula, or is not understood, stays as it was written.
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
    # Hostile ones.
    '<b x-init="go()">x</b>': "<p>&lt;b x-init=&quot;go()&quot;&gt;x&lt;/b&gt;</p>",
    "<script>go()</script>": "<p>&lt;script&gt;go()&lt;/script&gt;</p>",
    LINKS: f"<p>{LINKS}</p>",
    '[x](https://e.org "t\\" x-init=\\"go()")': '<p><a href="https://e.org">x</a></p>',
    '[x](<https://e.org" x-init="go()>)': (
        '<p><a href="https://e.org%22%20x-init=%22go()">x</a></p>'
    ),
    '``` "x-init="go()\nx\n```': CODE.format("&quot;x-init=&quot;go()", "x"),
    r"$\text{<img>} <b x$": (
        "<p><math><mtext>&lt;img&gt;</mtext><mo>&lt;</mo><mi>b</mi><mi>x</mi></math></p>"
    ),
    r"$\href{javascript:go}{x} \class{y}{z} \style{color:red}{w}$": (
        "<p><math><mi>x</mi><mi>z</mi><mi>w</mi></math></p>"
    ),
}


def test_who_is_logged_in_gets_markdown_as_html(db: None) -> None:
    for text, html in MARKDOWN.items():
        assert shown(text) == html, text

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


STORED = "/playground/conversations"
IMAGE = "data:image/png;base64,AA=="
CALL = {"id": "1", "name": "get_weather", "arguments": '{"city": "```"}', "result": "rain"}
ANSWER = {
    "role": "assistant",
    "model": "tiny",
    "finish": "stop",
    "error": "",
    "requestId": "ab",
    "text": "Take an `umbrella`.",
    "thinking": "It is north.\nIt rains.",
    "calls": [CALL],
    "stats": {"tokens": 3, "tokensPerS": 4.5, "isCut": False, "firstMs": None},
    "isRunning": False,
    "beside": [{"role": "assistant", "model": "other", "text": "Nimm einen Schirm. STRASSE"}],
}
STATE = {
    "model": "tiny",
    "beside": ["other"],
    "account": "ours",
    "system": "You know the weather.",
    "thinking": "on",
    "tools": "[]",
    "schema": "",
    "sampling": {"temperature": "0.5"},
    "turns": [{"role": "user", "text": "  Rain in\nOslo?", "images": [IMAGE]}, ANSWER],
}


def put(client: Client, id_: Any, state: Any, revision: int | str = 0) -> Any:
    body = state if isinstance(state, bytes) else json.dumps(state)
    return client.put(
        f"{STORED}/{id_}?revision={revision}", data=body, content_type="application/json"
    )


def saved(client: Client, state: Any = STATE, revision: int = 0, id_: str = "") -> str:
    id_ = id_ or str(uuid.uuid4())
    answer = put(client, id_, state, revision)
    assert answer.status_code == 200, answer.content
    assert (answer.json()["id"], answer.json()["revision"]) == (id_, revision + 1)
    return id_


def problem(answer: Any) -> tuple[int, str]:
    assert answer.json().keys() == {"error"} and answer.json()["error"]["message"]
    return answer.status_code, answer.json()["error"]["code"]


def state_of(words: str) -> dict[str, Any]:
    return {**STATE, "system": "", "turns": [{"role": "user", "text": words}]}


def listed(client: Client, words: str = "") -> list[str]:
    return [one["title"] for one in client.get(STORED, {"q": words}).json()["data"]]


@pytest.mark.django_db
def test_it_comes_back_as_it_was_saved_images_included() -> None:
    ann = person("ann")
    id_ = saved(ann)
    found = ann.get(f"{STORED}/{id_}")
    assert "no-store" in found["Cache-Control"]
    state = found.json()["state"]
    question, answer = state["turns"]
    assert (question["text"], question["images"]) == ("  Rain in\nOslo?", [IMAGE])
    assert answer["beside"][0]["text"] == "Nimm einen Schirm. STRASSE"
    assert answer | ANSWER | {"beside": answer["beside"]} == answer
    assert state | STATE | {"turns": state["turns"]} == state
    assert listed(ann) == ["Rain in Oslo?"]
    words = "a\x00b \U0001f327"  # which databases refuse
    id_ = saved(ann, state_of(words))
    assert ann.get(f"{STORED}/{id_}").json()["state"]["turns"][0]["text"] == words
    assert listed(ann, "A\x00B") == ["ab \U0001f327"]
    saved(ann, state_of("elsewhere, 100 %"))  # questions and all answers are found, in any case
    for words in ("OSLO", "schirm", "Straße", "it rains", "know the weather"):
        assert listed(ann, words) == ["Rain in Oslo?"], words
    assert listed(ann, "100 %") == listed(ann, "%") == ["elsewhere, 100 %"]
    assert listed(ann, "_") == listed(ann, "nowhere") == []
    Conversation.objects.all().delete()
    id_ = saved(ann, state_of("one"))
    saved(ann, state_of("two"), 1, id_)
    for revision in (1, 0):  # an older one does not overwrite a newer one
        assert problem(put(ann, id_, state_of("three"), revision)) == (
            409,
            "changed_elsewhere",
        )
    assert listed(ann) == ["two"]
    assert problem(put(ann, uuid.uuid4(), state_of("four"), 1)) == (404, "not_found")
    saved(ann, state_of("one"))
    assert ann.delete(f"{STORED}/{id_}").status_code == 204
    assert listed(ann) == ["one"]
    assert problem(ann.delete(f"{STORED}/{id_}")) == (404, "not_found")
    User.objects.get(username="ann").delete()
    assert not Conversation.objects.exists()


@pytest.mark.django_db
def test_nobody_else_sees_changes_or_deletes_it() -> None:
    ann, eve, operator = person("ann"), person("eve"), person("opal", is_superuser=True)
    id_ = saved(ann)
    for other in (eve, operator):
        assert listed(other) == []
        assert problem(other.get(f"{STORED}/{id_}")) == (404, "not_found")
        assert problem(other.get(f"{STORED}/{id_}/export?format=json")) == (
            404,
            "not_found",
        )
        assert problem(other.delete(f"{STORED}/{id_}")) == (404, "not_found")
        assert problem(put(other, id_, STATE, 1)) == (404, "not_found")
        assert problem(put(other, id_, STATE)) == (409, "changed_elsewhere")
    for answer in (Client().delete(f"{STORED}/{id_}"), put(Client(), id_, STATE)):
        assert problem(answer) == (401, "login_required")
    ann.handler.enforce_csrf_checks = True  # forged requests change nothing
    assert ann.delete(f"{STORED}/{id_}").status_code == 403
    assert put(ann, id_, state_of("evil"), 1).status_code == 403
    assert listed(ann) == ["Rain in Oslo?"]


def test_what_is_no_conversation_is_refused(admin_client: Client) -> None:
    for state, reason in (
        (b"{", "truncated"),
        (b"[]", "object"),
        ({"turns": [{"role": "system"}]}, "role"),
        ({"turns": [{"text": "x"}]}, "role"),
        ({"turns": [{"role": "user", "wordy": 1}]}, "wordy"),
        ({"turns": [{"role": "user", "images": [1]}]}, "images"),
        ({"turns": [], "more": 1}, "more"),
        ({"model": "tiny"}, "turns"),
        (b'{"turns": [{"role": "user", "text": "\xff"}]}', "conversation"),
        (b"[" * 100_000, "conversation"),
    ):
        answer = put(admin_client, uuid.uuid4(), state)
        assert problem(answer) == (400, "invalid_value")
        assert reason in answer.json()["error"]["message"]
    for revision in ("", "-1", "one", "9999999999"):
        answer = put(admin_client, uuid.uuid4(), STATE, revision)
        assert problem(answer) == (400, "invalid_value")
    assert not Conversation.objects.exists()


@pytest.mark.django_db
def test_size_and_number_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ann, eve = person("ann"), person("eve")
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 2)
    id_ = saved(ann, state_of("one"))
    saved(ann, state_of("two"))
    answer = put(ann, uuid.uuid4(), state_of("three"))
    assert problem(answer) == (409, "too_many")
    assert "2 conversations" in answer.json()["error"]["message"]
    saved(ann, state_of("one, continued"), 1, id_)
    saved(eve, state_of("hers"))

    size = Conversation.objects.filter(pk=id_).get().num_bytes
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS_BYTES", 2 * size)
    answer = put(ann, id_, state_of("x" * size), 2)
    assert problem(answer) == (413, "too_large")
    monkeypatch.setattr(conversations, "MAX_CONVERSATION_BYTES", size - 1)
    answer = put(eve, uuid.uuid4(), state_of("one, continued"))
    assert problem(answer) == (413, "too_large")
    assert listed(ann) == ["one, continued", "two"]
    monkeypatch.undo()  # a large one passes the limit of forms, a larger one is not read whole
    image = "data:image/png;base64," + "A" * 6_000_000
    state = {**STATE, "turns": [{"role": "user", "text": "see", "images": [image]}]}
    id_ = saved(ann, state)
    assert ann.get(f"{STORED}/{id_}").json()["state"]["turns"][0]["images"] == [image]
    body = b" " * (conversations.MAX_CONVERSATION_BYTES + 1)
    assert problem(put(ann, uuid.uuid4(), body)) == (413, "too_large")


@pytest.mark.django_db
def test_it_goes_out_as_json_and_markdown() -> None:
    ann = person("ann")
    id_ = saved(ann)
    answer = ann.get(f"{STORED}/{id_}/export?format=json")
    assert answer["Content-Type"] == "application/json"
    assert answer["Content-Disposition"].startswith('attachment; filename="conversation-')
    whole = json.loads(answer.content)
    assert (whole["title"], whole["turns"][0]["images"]) == ("Rain in Oslo?", [IMAGE])
    text = ann.get(f"{STORED}/{id_}/export?format=md").text
    for part in (
        "# Rain in Oslo?\n\n",
        "## System prompt\n\nYou know the weather.",
        f"## Question\n\n![Image 1]({IMAGE})\n\n  Rain in\nOslo?",
        "## Answer of tiny\n\n> It is north.\n> It rains.\n\nTake an `umbrella`.",
        'Call of `get_weather`:\n\n````json\n{"city": "```"}\n````\n\nResult:\n\n```\nrain\n```',
        "## Answer of other\n\nNimm einen Schirm. STRASSE",
    ):
        assert part in text, text
    assert problem(ann.get(f"{STORED}/{id_}/export?format=pdf")) == (
        400,
        "invalid_value",
    )
