"""How keys look, and that only the whole key is recognised."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metering.keys import api_key as keys
from tests.cases import each_case

SECRET = keys.digest_secret("django's")


def test_a_key_and_its_prefix() -> None:
    made = keys.make_key()
    assert made.key.startswith(f"{made.prefix}-")
    assert keys.prefix_of(made.key) == made.prefix
    assert (len(made.prefix), len(made.key)) == (13, 46)
    assert keys.make_key().key != made.key


def test_a_key_does_not_show_where_it_is_printed_by_accident() -> None:
    made = keys.make_key()
    assert made.prefix in repr(made)
    assert made.key not in repr(made)


@each_case(
    "word",
    [
        "",
        "sk-placeholder",
        "hx-0123456789",
        "hx-0123456789-" + "a" * 31,
        "hx-0123456789-" + "a" * 33,
        "hx-012345678-" + "a" * 33,
        "HX-0123456789-" + "a" * 32,
        "hx-0123456789-" + "a" * 31 + "\n",
        "hx-0123456789-" + "a" * 32 + "\n",
        "hx-012345678é-" + "a" * 32,
        "hx-012345678٣-" + "a" * 32,
    ],
)
def test_what_is_no_key(word: str) -> None:
    assert keys.prefix_of(word) is None


@given(st.text(max_size=60))
def test_any_text_is_a_key_or_not(word: str) -> None:
    prefix = keys.prefix_of(word)
    assert prefix is None or word.startswith(prefix)


def test_only_the_whole_key_is_recognised() -> None:
    made = keys.make_key()
    digest = keys.digest_of(made.key, SECRET)
    assert len(digest) == 64
    assert keys.is_key_of(made.key, digest, SECRET)
    other = made.key[:-1] + ("a" if made.key[-1] != "a" else "b")
    assert not keys.is_key_of(other, digest, SECRET)


def test_another_secret_key_makes_another_digest() -> None:
    made = keys.make_key()
    digest = keys.digest_of(made.key, SECRET)
    assert not keys.is_key_of(made.key, digest, keys.digest_secret("another"))
    assert made.key not in digest
