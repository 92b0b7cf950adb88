"""Every golden case of files and batches is complete, and the dialects still produce it."""

from __future__ import annotations

import json

from inference.batches.records import ENDED
from inference.wire.anthropic.batches import FIELDS, REQUEST_FIELDS
from inference.wire.common.batch_lines import LINE_FIELDS
from inference.wire.common.fields import Support
from inference.wire.openai.batches import BATCH_FIELDS
from tests.cases import each_case
from tests.inference.wire.golden_batches import DIALECTS, OUTPUTS, Case, cases

CASES = cases()


@each_case("case", CASES, ids=str)
def test_case(case: Case) -> None:
    outputs = case.outputs()
    for name, content in outputs.items():
        assert (case.path / name).read_bytes() == content, f"{case}: {name} differs"
    given = {path.name for path in case.path.iterdir()} - outputs.keys()
    assert given and given <= OUTPUTS.keys(), f"{case} has {sorted(given)}"


def test_every_dialect_has_each_kind() -> None:
    for dialect in DIALECTS:
        names = {
            path.name for case in CASES if case.dialect == dialect for path in case.path.iterdir()
        }
        assert {"parsed.json", "object.json", "results.jsonl", "error.json"} <= names, dialect


def test_every_field_and_every_end_is_in_a_case() -> None:
    given: set[str] = set()
    statuses: set[str] = set()
    for case in CASES:
        made = case.outputs()
        if "parsed.json" in made:
            asked = json.loads((case.path / "request.json").read_bytes())
            given |= asked.keys() | {name for one in asked.get("requests", []) for name in one}
        if "lines.json" in made:
            lines = (case.path / "lines.jsonl").read_bytes().splitlines()
            given |= {name for line in lines if line.strip() for name in json.loads(line)}
        if "object.json" in made:
            statuses.add(json.loads((case.path / "batch.json").read_bytes())["status"])
    for fields in (BATCH_FIELDS, FIELDS, REQUEST_FIELDS, LINE_FIELDS):
        assert {one.name for one in fields.values() if one.support is not Support.REFUSED} <= given
    assert set(ENDED) <= statuses
