"""What a command prints, and its refusal."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from helexa_site.management.base import ExitCode


def printed(*words: str) -> tuple[str, str]:
    """For programs, and for people."""
    out, err = io.StringIO(), io.StringIO()
    call_command(*words, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def output(*words: str) -> str:
    return printed(*words)[0]


def printed_json(*words: str) -> Any:
    return json.loads(output(*words, "--json"))


def refused(*words: str, code: int = ExitCode.REFUSED) -> str:
    """The one line for people; Django prints it on standard error and exits with the code."""
    with pytest.raises(CommandError) as caught:
        output(*words)
    assert caught.value.returncode == code
    return str(caught.value)
