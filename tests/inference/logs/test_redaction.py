"""Secrets are hidden wherever they turn up, and nothing else is."""

from __future__ import annotations

from inference.logs.redaction import Redactor, secrets_of
from tests.cases import each_case


@each_case(
    ("given", "shown"),
    [
        ("lost redis://:p@ss.word/0?", "lost redis://:***@ss.word/0?"),
        ("unix://:sesame@/run/redis.sock?db=0", "unix://:***@/run/redis.sock?db=0"),
        ("postgres://u:sesame@db/helexa and more", "postgres://u:***@db/helexa and more"),
        ("redis+socket://:x@/run, redis://:y@h", "redis+socket://:***@/run, redis://:***@h"),
        ("no http://localhost:8080/a@b secret", "no http://localhost:8080/a@b secret"),
        ("key hx-abcd1234efgh5678ijkl here", "key hx-abcd1234*** here"),
        ("its prefix hx-abcd12345678 may be read", "its prefix hx-abcd12345678 may be read"),
        ("authorization: Bearer any.thing-at_all", "authorization: Bearer ***"),
        ("{'x-api-key': 'sk-proj-0123456789abcdef'}", "{'x-api-key': 'sk-***'}"),
        ("token hf_0123456789abcdefghij", "token hf_***"),
        ("a task-runner and phx-abcdefghijklmnopqrs", "a task-runner and phx-abcdefghijklmnopqrs"),
        ("the operators-own key", "the *** key"),
    ],
)
def test_what_is_hidden(given: str, shown: str) -> None:
    assert Redactor(frozenset({"operators-own", "the"}))(given) == shown


def test_the_secrets_of_a_process() -> None:
    environment = {
        "HELEXA_API_KEY": "operators-own",
        "HF_TOKEN": "whatever",
        "REDIS_URL": "redis://:sesame@redis/0",
        "HELEXA_DATA_DIR": "/var/helexa",
    }
    assert secrets_of(environment) == {"operators-own", "whatever"}
