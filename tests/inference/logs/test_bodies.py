"""Texts of clients and models in a log: nothing secret, and not too much of anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.logs.bodies import MAX_BODY_CHARACTERS, digest_of, masked_body
from inference.logs.redaction import Redactor
from tests.cases import each_case

REDACT = Redactor(frozenset({"operators-own"}))


@each_case(
    ("given", "shown"),
    [
        ("look: data:image/png;base64,iVBORw0KGgo= ok", "look: data:image/png;base64,*** ok"),
        ('{"url": "data:text/plain,hello"}', '{"url": "data:text/plain,***"}'),
        ("Authorization: Bearer abc.def-ghi", "Authorization: ***"),
        ("curl -H 'x-api-key: 0123456789'", "curl -H 'x-api-key: ***'"),
        ('api_key = "s3same"', 'api_key = "***"'),
        (r"{\"password\": \"s3same\", \"a\": 1}", r"{\"password\": \"***\", \"a\": 1}"),
        ("SECRET_KEY=s3same next", "SECRET_KEY=*** next"),
        ("AKIAIOSFODNN7EXAMPLE and on", "AKIA*** and on"),
        ("ghp_0123456789abcdefghij0123456789abcdef", "ghp_***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJ***"),
        ("redis://:sesame@redis/0", "redis://:***@redis/0"),
        ("the operators-own key", "the *** key"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY----- end",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY----- end",
        ),
        ("my password is long; the tokens=12", "my password is long; the tokens=12"),
        ("a database, data: none, dataset:1,2", "a database, data: none, dataset:1,2"),
    ],
)
def test_what_is_masked(given: str, shown: str) -> None:
    assert masked_body(given, REDACT) == shown


def test_a_long_text_is_its_beginning_and_its_end() -> None:
    text = "a" * 60_000 + "b" * 60_000
    shown = masked_body(text, REDACT)
    assert len(shown) < MAX_BODY_CHARACTERS + 100
    assert shown.startswith("aaa") and shown.endswith("bbb")
    assert f"[{len(text) - MAX_BODY_CHARACTERS} characters left out]" in shown


@given(before=st.integers(0, 80), after=st.integers(0, 80), limit=st.integers(2, 60))
def test_no_cut_uncovers_a_part_of_a_key(before: int, after: int, limit: int) -> None:
    key = "sk-" + "K" * 40
    shown = masked_body(f"{'a' * before} {key} {'b' * after}", REDACT, limit)
    assert "K" not in shown


def test_digests_distinguish_texts() -> None:
    assert digest_of("yes") == digest_of("yes") != digest_of("no")
    assert len(digest_of("\ud800")) == 16
