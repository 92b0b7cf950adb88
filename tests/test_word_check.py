"""``scripts/words/check.py``: words that are being replaced may only become fewer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
LIST = "any\ttell|told\tpublish\nprose\tnobody\tno caller\nany\tSpot\tcandidate\n"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "word_check", REPOSITORY / "scripts" / "words" / "check.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["word_check"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path, check: ModuleType) -> Path:
    """A repository of one package with three of the words, all of them accepted."""
    (tmp_path / "list.tsv").write_text(LIST)
    (tmp_path / "baseline.tsv").write_text("fleet\t3\n")
    write(tmp_path, "fleet/live/reading.py", '"""Told to nobody."""\ntold = "nobody"\n')
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    subprocess.run(("git", "init", "-q", str(root)), check=True)
    subprocess.run(("git", "-C", str(root), "add", path), check=True)


def ran(check: ModuleType, root: Path, *arguments: str) -> int:
    code: int = check.main([*arguments], root=root, here=root)
    return code


def test_a_package_at_its_baseline_passes(check: ModuleType, checkout: Path) -> None:
    assert ran(check, checkout) == 0


def test_one_word_more_fails_and_is_named(
    check: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(checkout, "fleet/more.py", "x = 1  # tell it\n")
    assert ran(check, checkout) == 1
    assert "fleet: 4 words that are being replaced, 3 accepted" in capsys.readouterr().err
    assert ran(check, checkout, "--show", "fleet") == 0
    assert "fleet/more.py:1: 'tell': publish" in capsys.readouterr().out


def test_the_baseline_is_lowered_and_never_raised(check: ModuleType, checkout: Path) -> None:
    write(checkout, "fleet/live/reading.py", '"""Told."""\n')
    assert ran(check, checkout, "--write") == 0
    assert (checkout / "baseline.tsv").read_text() == "fleet\t1\n"
    write(checkout, "fleet/live/reading.py", '"""Told and told."""\n')
    assert ran(check, checkout, "--write") == 1
    assert (checkout / "baseline.tsv").read_text() == "fleet\t1\n"


def test_a_package_at_nought_stays_there(check: ModuleType, checkout: Path) -> None:
    write(checkout, "fleet/live/reading.py", "x = 1\n")
    assert ran(check, checkout, "--write") == 0
    assert (checkout / "baseline.tsv").read_text() == ""
    write(checkout, "fleet/live/reading.py", "told = 1\n")
    assert ran(check, checkout) == 1


def test_every_folder_of_inference_is_a_package(check: ModuleType) -> None:
    packages = [
        check.package_of(path)
        for path in ("inference/wire/openai/a.py", "inference/a.py", "fleet/live/a.py", "README.md")
    ]
    assert packages == ["inference/wire", "inference", "fleet", "."]


def test_a_file_is_kept_by_its_path_and_reason(check: ModuleType, checkout: Path) -> None:
    write(checkout, "fleet/more.py", "told = 1\n")
    (checkout / "kept.tsv").write_text("fleet/more.py\tinputs of a check\n")
    assert ran(check, checkout) == 0
    write(checkout, "fleet/more_than_kept.py", "told = 1\n")
    assert ran(check, checkout) == 1


def test_prose_is_docstrings_and_comments(check: ModuleType) -> None:
    finder = check.WordFinder(check.read_words(REPOSITORY / "scripts" / "words" / "list.tsv"))
    code = '"""One.\n\nNobody asks."""\n\nnobody = "nobody"  # as nobody does\n'
    found = [(each.line, each.found) for each in finder.findings_in(code, is_code=True)]
    assert found == [(3, "Nobody"), (5, "nobody")]
    page = [each.line for each in finder.findings_in("a\nnobody\n", is_code=False)]
    assert page == [2]


def test_words_are_whole_and_capitals_count(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "list.tsv").write_text(LIST)
    finder = check.WordFinder(check.read_words(tmp_path / "list.tsv"))
    code = "is_told = teller(Spot, spot, intelligent, SpotPrice)\n"
    found = sorted(each.found for each in finder.findings_in(code, is_code=True))
    assert found == ["Spot", "Spot", "told"]


def test_a_line_without_a_replacement_is_refused(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "list.tsv").write_text("any\ttell\n")
    with pytest.raises(ValueError, match="any or prose, forms, replacement"):
        check.read_words(tmp_path / "list.tsv")


def test_a_kept_text_is_not_counted(check: ModuleType, checkout: Path) -> None:
    write(checkout, "fleet/more.py", "position = file.tell()\n")
    assert ran(check, checkout) == 1
    (checkout / "kept.tsv").write_text("# text, reason\nfile.tell()\tPython's own method\n")
    assert ran(check, checkout) == 0


def test_a_kept_text_needs_a_reason(check: ModuleType, checkout: Path) -> None:
    (checkout / "kept.tsv").write_text("file.tell()\n")
    with pytest.raises(ValueError, match=r"kept\.tsv"):
        ran(check, checkout)
