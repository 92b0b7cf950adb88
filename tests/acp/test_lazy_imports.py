"""What a process of the bridge imports later than others do, and that it is the same then."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from helexa_acp.sdk.lazy_models import parts_of
from helexa_acp.sdk.lazy_packages import GATHERING, gathered_names, only_gathers
from tests.acp.bridge import PACKAGE_DIR

GATHERS = """\
# Generated.

from __future__ import annotations

from .one import One as One
from .two import (
    Two as Zwei,
    TWO_TOO,  # a constant
)

__all__ = ["One", "Zwei"]
"""


def test_what_a_package_gathers() -> None:
    assert gathered_names(GATHERS) == {
        "One": (".one", "One"),
        "Zwei": (".two", "Two"),
        "TWO_TOO": (".two", "TWO_TOO"),
    }
    assert only_gathers(GATHERS)
    assert not only_gathers(GATHERS + "print('hello')\n")
    assert not only_gathers("from .one import *\n")
    assert not only_gathers("import sys\n")


def test_which_statements_are_models() -> None:
    source = textwrap.dedent(
        '''\
        from enum import Enum
        class BaseModel(_BaseModel):
            """Its own."""
        class Kind(Enum):
            A = "a"
        class One(BaseModel):
            a: int
            """
            With a class in its words.
            """
        class Two(One):
            b: int
        class Three(RootModel[Union[One, Two]]):
            root: Union[One, Two]
        Either = Union[One, Two]
        '''
    )
    parts = parts_of(source)
    assert [name for name, _ in parts if name] == ["One", "Two", "Three"]
    assert "".join(statement for _, statement in parts) == source


def output_of(script: str, folder: Path) -> object:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=folder,
        env={"PYTHONPATH": str(PACKAGE_DIR), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_every_model_is_what_it_is_without() -> None:
    """The models are compared as JSON schemas: fields, aliases, defaults and what they may hold."""
    schemas = """
        import json
        import pydantic
        import acp.schema
        found = {}
        for name, model in sorted(vars(acp.schema).items()):
            model = getattr(model, "built", lambda: model)() if name[0] != "_" else None
            if isinstance(model, type) and issubclass(model, pydantic.BaseModel):
                if model.__module__ == "acp.schema" and "[" not in name:
                    schema = json.dumps(model.model_json_schema(), sort_keys=True)
                    found[name] = without_descriptions(json.loads(schema))
        print(json.dumps(found, sort_keys=True))
    """
    without = """
        def without_descriptions(value):
            if isinstance(value, dict):
                return {k: without_descriptions(v) for k, v in value.items() if k != "description"}
            return [without_descriptions(v) for v in value] if isinstance(value, list) else value
    """
    folder = PACKAGE_DIR
    usual = output_of(textwrap.dedent(without) + textwrap.dedent(schemas), folder)
    lazy = output_of(
        "import helexa_acp.sdk.quick_import\n"
        + textwrap.dedent(without)
        + textwrap.dedent(schemas),
        folder,
    )
    assert isinstance(usual, dict) and len(usual) > 250
    assert lazy == usual


@pytest.mark.slow
def test_few_models_are_made_and_few_modules_imported(tmp_path: Path) -> None:
    """Modules are counted for a session, and for each SDK's client."""
    answer = output_of(
        f"""
        import json, sys
        import helexa_acp.sdk.quick_import
        from helexa_acp.sdk import lazy_packages
        lazy_packages.install()
        import acp.schema
        from helexa_acp.sdk.lazy_models import LazyModel
        import helexa_acp.serving
        made = sum(not isinstance(one, LazyModel) and hasattr(one, "model_fields")
                   for one in vars(acp.schema).values())
        import helexa_acp.wire.openai_chat
        import helexa_acp.wire.openai_responses
        import helexa_acp.wire.anthropic_messages
        import anthropic
        anthropic.AsyncAnthropic
        modules = sum(name.startswith({GATHERING!r}) for name in sys.modules)
        # Asked for, they are there.
        from openai.types.chat import ChatCompletionChunk
        import anthropic.types
        assert anthropic.types.Message.__name__ == "Message"
        print(json.dumps([made, modules, "opentelemetry" in sys.modules]))
        """,
        tmp_path,
    )
    assert isinstance(answer, list)
    made, modules, _ = answer
    assert made < 10
    assert modules < 1500, "three thousand are there"
