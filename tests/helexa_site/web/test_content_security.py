"""Every answer of Django's has the policy; what a browser makes of it, tests/browser looks at."""

from __future__ import annotations

import pytest
from django.test import Client

from helexa_site.web.middleware import HEADER, POLICY, policy_text


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/login/", "localhost"),
        ("/admin/login/", "localhost"),
        ("/docs", "localhost"),
        ("/admin/", "localhost"),
        ("/nowhere", "localhost"),
        ("/login/", "evil.example"),
        ("/static/helexa/pages.css", "localhost"),
    ],
)
def test_every_answer_has_the_policy(path: str, host: str) -> None:
    response = Client(headers={"host": host}).get(path)
    assert response.headers[HEADER] == policy_text()


def test_no_page_runs_a_script_that_stands_in_it_or_comes_from_elsewhere() -> None:
    scripts = POLICY["script-src"]
    assert set(scripts) == {"'self'", "'unsafe-eval'"}
    assert POLICY["default-src"] == ("'self'",), "connections among others"
    for directive in ("object-src", "base-uri", "frame-src", "frame-ancestors"):
        assert POLICY[directive] == ("'none'",)
