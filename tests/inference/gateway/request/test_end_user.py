"""Whom a request is asked for."""

from __future__ import annotations

from inference.gateway.request.identify import MAX_CHARS, cleaned, end_user_of_headers
from metering.principal import Principal
from tests.cases import each_case

TRUSTED = Principal(account="lab", names_end_user=True)


@each_case(
    ("headers", "end_user"),
    [
        ({}, ""),
        ({b"x-openwebui-user-id": b"7"}, "7"),
        ({b"x-openwebui-user-id": b"7", b"x-openwebui-user-email": b"a@b.c"}, "a@b.c"),
        ({b"x-openwebui-user-id": b"7", b"x-openwebui-user-email": b" \x07 "}, "7"),
        ({b"x-litellm-end-user-id": b"e", b"x-openwebui-user-email": b"a@b.c"}, "e"),
        ({b"x-litellm-end-user-id": b"e", b"x-litellm-customer-id": b"c"}, "c"),
        ({b"x-litellm-customer-id": "Zoë".encode()}, "Zoë"),
        ({b"x-litellm-customer-id": b"\xff"}, "\ufffd"),
    ],
)
def test_headers(headers: dict[bytes, bytes], end_user: str) -> None:
    assert end_user_of_headers(headers.items(), TRUSTED) == end_user
    assert end_user_of_headers(headers.items(), Principal(account="lab")) == ""


def test_what_does_not_print_is_left_out() -> None:
    assert cleaned(" a\0b\n\u202ec\ud800 d ") == "abc d"


def test_long_names_that_differ_stay_different() -> None:
    assert cleaned("x" * MAX_CHARS) == "x" * MAX_CHARS
    names = {cleaned("x" * MAX_CHARS + end) for end in "abc"}
    assert [len(name) for name in names] == [MAX_CHARS] * 3
