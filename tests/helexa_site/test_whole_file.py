"""Files that appear whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from helexa_site.whole_file import keep_once, write_whole, written_whole


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_replaces_a_file_and_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text("old")
    path.chmod(0o644)
    write_whole(path, "grün")
    assert path.read_bytes() == "grün".encode()
    assert mode_of(path) == 0o600, "its owner's alone"
    write_whole(path, "new", mode=0o640)
    assert mode_of(path) == 0o640, "whatever the umask"
    assert names_in(tmp_path) == ["key.json"]


def test_a_reader_sees_the_old_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_text("old")
    with written_whole(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_text() == "old"
        assert all(mode_of(one) & 0o077 == 0 for one in tmp_path.iterdir() if one != path)
    assert path.read_text() == "half"


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), written_whole(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["archive"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "file", "text")
    assert names_in(tmp_path) == ["archive", "folder"]


def test_what_is_kept_once_stays(tmp_path: Path) -> None:
    path = tmp_path / "made" / "key"
    keep_once(path, "first")
    keep_once(path, "second")
    assert (path.read_text(), mode_of(path)) == ("first", 0o600)
    assert names_in(path.parent) == ["key"]
