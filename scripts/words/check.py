"""Counts the words of ``list.tsv`` by package and compares them with ``baseline.tsv``.

    list.tsv      words that are being replaced, each with the field's word
    kept.tsv      texts and files that are not counted, each with the reason
    baseline.tsv  package, count: the most that is accepted

A count over its package's baseline fails the check and prints the lines of that package. A count
under it passes; ``--write`` then lowers the baseline, and raises none. A package without a line has
a baseline of nought, so one that has reached nought stays there.

    python scripts/words/check.py             compares; exit code 1 where a count has risen
    python scripts/words/check.py --write     lowers the baseline to the counts
    python scripts/words/check.py --show inference/text    the package's lines, each with its word
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
SUFFIXES = (".py", ".md", ".html")
IN_PARTS = ("inference",)
"""Folders whose subfolders are packages of their own."""
PROSE = re.compile(r'"""(?P<docstring>.*?)"""|(?<!["\'])#(?P<comment>[^\n]*)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    form: str
    """One form of it. With a capital letter it is counted as it is written, else in any case."""
    instead: str
    is_prose: bool
    """It is counted in docstrings, comments and pages alone."""


@dataclass(frozen=True, slots=True)
class Finding:
    line: int
    found: str
    instead: str


def read_words(path: Path) -> list[Word]:
    """Raises ``ValueError`` for a line that is not ``any|prose``, forms, replacement."""
    words = []
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 3 or fields[0] not in ("any", "prose") or not all(fields):
            raise ValueError(f"{path.name}: {line!r} is not: any or prose, forms, replacement")
        where, forms, instead = fields
        words += [Word(form, instead, where == "prose") for form in forms.split("|")]
    return words


def read_kept(path: Path) -> list[str]:
    """The texts that are not counted, longest first. Raises ``ValueError`` for a line that is not
    text, reason."""
    kept = []
    for line in path.read_text().splitlines() if path.exists() else ():
        if not line or line.startswith("#"):
            continue
        text, _, reason = line.partition("\t")
        if not text or not reason:
            raise ValueError(f"{path.name}: {line!r} is not: text, reason")
        kept.append(text)
    return sorted(kept, key=len, reverse=True)


class WordFinder:
    """Searches a text for all words at once: one pattern for each way of searching."""

    def __init__(self, words: list[Word], kept: Sequence[str] = ()) -> None:
        self._kept = re.compile("|".join(map(re.escape, kept)) or r"(?!)")
        self._searches = [
            (re.compile(rf"(?<![A-Za-z])(?:{_alternatives(chosen)})(?![a-z])", flags), is_prose)
            for is_prose in (False, True)
            for flags in (re.NOFLAG, re.IGNORECASE)
            if (chosen := [w for w in words if (w.is_prose, _flags(w)) == (is_prose, flags)])
        ]
        self._instead = {word.form.lower(): word.instead for word in words}

    def findings_in(self, text: str, *, is_code: bool) -> Iterator[Finding]:
        """Each place of ``text`` that has one of the words."""
        text = self._kept.sub("_", text)
        prose = prose_of(text) if is_code else text
        for pattern, is_prose in self._searches:
            searched = prose if is_prose else text
            for found in pattern.finditer(searched):
                line = searched.count("\n", 0, found.start()) + 1
                form = " ".join(found[0].split())
                yield Finding(line, form, self._instead[form.lower()])


def _alternatives(words: list[Word]) -> str:
    return "|".join(re.escape(word.form).replace(r"\ ", r"\s+") for word in words)


def _flags(word: Word) -> re.RegexFlag:
    return re.NOFLAG if word.form != word.form.lower() else re.IGNORECASE


def prose_of(code: str) -> str:
    """The docstrings and comments of a module, at the lines where they are."""
    parts, end = [], 0
    for found in PROSE.finditer(code):
        parts.append("\n" * code.count("\n", end, found.start()))
        parts.append(found["docstring"] if found["docstring"] is not None else found["comment"])
        end = found.end()
    return "".join(parts)


def package_of(path: str) -> str:
    """``inference/engine/sampling/x.py`` is of ``inference/engine``; ``fleet/live/x.py`` of
    ``fleet``."""
    folder, *rest = path.split("/")
    if not rest:
        return "."
    return f"{folder}/{rest[0]}" if folder in IN_PARTS and len(rest) > 1 else folder


def counted_files(root: Path) -> list[str]:
    """The files that git tracks, but for generated ones, the history and this check itself."""
    listed = subprocess.run(
        ("git", "-C", str(root), "ls-files", "-z"), check=True, capture_output=True, text=True
    )
    return [
        path
        for path in listed.stdout.split("\0")
        if path.endswith(SUFFIXES)
        and not path.startswith("scripts/words/")
        and "/migrations/" not in path
        and path != "CHANGELOG.md"
        and (root / path).is_file()
    ]


def findings_by_file(
    root: Path, finder: WordFinder, kept: Sequence[str] = ()
) -> dict[str, list[Finding]]:
    """Findings by path from ``root``. A text of ``kept`` that is a file's path keeps the file."""
    found = {}
    for path in counted_files(root):
        if path in kept:
            continue
        text = (root / path).read_text()
        if findings := list(finder.findings_in(text, is_code=path.endswith(".py"))):
            found[path] = findings
    return found


def read_baseline(path: Path) -> Counter[str]:
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    return Counter({package: int(count) for package, count in lines})


def lowered(baseline: Counter[str], counts: Counter[str]) -> dict[str, int]:
    """Packages at nought have no line."""
    return {
        package: least
        for package in sorted(baseline)
        if (least := min(baseline[package], counts[package]))
    }


def lines_of(package: str, found: dict[str, list[Finding]]) -> Iterator[str]:
    for path, findings in found.items():
        if package_of(path) == package:
            for each in sorted(findings, key=lambda finding: finding.line):
                yield f"{path}:{each.line}: {each.found!r}: {each.instead}"


def main(arguments: list[str], *, root: Path = REPOSITORY, here: Path = HERE) -> int:
    parser = argparse.ArgumentParser(description="Counts words that are being replaced.")
    parser.add_argument("--write", action="store_true", help="lower the baseline to the counts")
    parser.add_argument("--show", metavar="PACKAGE", help="print the package's lines")
    options = parser.parse_args(arguments)
    kept = read_kept(here / "kept.tsv")
    finder = WordFinder(read_words(here / "list.tsv"), kept)
    found = findings_by_file(root, finder, kept)
    if options.show:
        print("\n".join(lines_of(options.show, found)))
        return 0
    counts = Counter({package_of(path): 0 for path in found})
    for path, findings in found.items():
        counts[package_of(path)] += len(findings)
    baseline = read_baseline(here / "baseline.tsv")
    if options.write:
        rows = lowered(baseline, counts).items()
        (here / "baseline.tsv").write_text("".join(f"{name}\t{count}\n" for name, count in rows))
        baseline = read_baseline(here / "baseline.tsv")
    risen = {name: count for name, count in counts.items() if count > baseline[name]}
    for package, count in sorted(risen.items()):
        print(
            f"{package}: {count} words that are being replaced, {baseline[package]} accepted; "
            f"python scripts/words/check.py --show {package} prints them",
            file=sys.stderr,
        )
    print(f"{counts.total()} words that are being replaced, {baseline.total()} accepted")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
