"""What a part wrote in a few words, and the table of all parts. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks.cuda.first_hour.facts import read_facts
from benchmarks.cuda.first_hour.plan import Part, Summary
from benchmarks.cuda.first_hour.state import Result

OPEN, LEFT_OUT = "not run", "left out"
NO_OUTPUT = "no output: see the log"


def summary_of(kind: Summary, output: str, errors: str) -> str:
    """Summarizes in a few words what the part wrote to standard output and to standard error."""
    match kind:
        case "facts":
            found = _in_words(read_facts(output))
        case "bench":
            found = _bench_in_words(output)
        case "pytest":
            found = _last_line(output)
        case "lines":
            found = _in_words(_json_object(output)) or _last_line(output)
    return found or _last_line(errors) or NO_OUTPUT


def _in_words(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in facts.items())


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _json_object(output: str) -> Mapping[str, object]:
    """Returns the JSON object's fields; none if the output is not one JSON object."""
    try:
        found = json.loads(output)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _bench_in_words(output: str) -> str:
    found = _json_object(output)
    rows = found.get("rows")
    words = [_row_in_words(row) for row in rows] if isinstance(rows, list) else []
    missing = found.get("not_measured")
    if isinstance(missing, dict):
        words += [f"{label} is not measured: {why}" for label, why in missing.items()]
    return "; ".join(words)


def _row_in_words(row: Mapping[str, object]) -> str:
    """``decode, 1 at once: 800 tok/s, 71 % of the best, 1.40 of transformers``"""
    rate, share = row.get("helexa_tokens_per_s"), row.get("share")
    words = [f"{rate:,.0f} tok/s" if isinstance(rate, float | int) else "unmeasured"]
    if isinstance(share, float):
        words.append(f"{share:.0%} of the best")
    for peer, name in (("transformers", "ratio"), ("vLLM", "vllm_ratio")):
        if isinstance(ratio := row.get(name), float):
            words.append(f"{ratio:.2f} of {peer}")
    return f"{str(row.get('name')).partition(', ')[2]}: {', '.join(words)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def table_of(parts: Sequence[Part], results: Mapping[str, Result], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("part", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("seconds", justify="right")
    table.add_column("found")
    table.add_column("log", no_wrap=True)
    for part in parts:
        table.add_row(*row_of(part, results.get(part.name)))
    return table


def row_of(part: Part, result: Result | None) -> tuple[str, str, str, str, str]:
    """The table's cells. What a part found earlier stays in the table where it is left out now."""
    if result is None:
        outcome = LEFT_OUT if part.left_out else OPEN
        return part.name, outcome, "", part.left_out, ""
    return part.name, result.outcome, f"{result.seconds:.0f}", result.summary, result.log
