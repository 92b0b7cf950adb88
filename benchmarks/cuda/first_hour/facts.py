"""What a part reports: a line of JSON that its process writes last, and the runner reads."""

from __future__ import annotations

import json
from collections.abc import Mapping

MARK = "FACTS "


def print_facts(**facts: object) -> None:
    print(MARK + json.dumps(facts), flush=True)


def read_facts(output: str) -> Mapping[str, object]:
    """Returns the facts of the last line that has any; none without such a line."""
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            facts: Mapping[str, object] = json.loads(line.removeprefix(MARK))
            return facts
    return {}
