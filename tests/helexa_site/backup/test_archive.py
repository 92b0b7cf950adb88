"""Archives are extracted below their folder, with ``tarfile.data_filter`` and without."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from helexa_site.backup.archive import extract


@pytest.fixture(params=["with a filter", "without"], autouse=True)
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def archive(*members: tarfile.TarInfo) -> tarfile.TarFile:
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for member in members:
            tar.addfile(member, BytesIO(b"text") if member.isreg() else None)
    content.seek(0)
    return tarfile.open(fileobj=content)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    found.size = 4 if kind == tarfile.REGTYPE else 0
    return found


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_files_and_folders_below_the_folder(tmp_path: Path) -> None:
    folder = member("sub", tarfile.DIRTYPE)
    folder.mode = 0o755
    extract(archive(member("a"), folder, member("sub/b")), tmp_path)
    assert [(tmp_path / name).read_text() for name in ("a", "sub/b")] == ["text"] * 2


@pytest.mark.parametrize(
    "outside",
    [
        member("../a"),
        member("sub/../../a"),
        member("/etc/a"),
        member("link", tarfile.SYMTYPE, "a"),
        member("hard", tarfile.LNKTYPE, "../x"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda one: f"{one.name} {one.linkname}",
)
def test_nothing_of_an_archive_that_leaves_it_is_extracted(
    outside: tarfile.TarInfo, tmp_path: Path
) -> None:
    with pytest.raises(tarfile.TarError, match="no file below"):
        extract(archive(member("a"), outside), tmp_path / "out")
    assert not list(tmp_path.rglob("*"))
