"""What of a GGUF file stays in memory once its tensors were read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference.loading.gguf.config import read_gguf_config
from inference.loading.gguf.header import read_headers
from inference.loading.gguf.tensors import GGUFTensorFiles

SMAPS = Path("/proc/self/smaps")
FEW_BYTES = 2**20
TABLE = "model.embed_tokens.weight"

pytestmark = pytest.mark.skipif(not SMAPS.exists(), reason="there is no /proc to look into")


def resident_bytes(path: Path) -> int:
    """Returns the resident bytes of a file's mappings in this process."""
    text = SMAPS.read_text()
    found = re.findall(rf" {re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", text)
    return sum(int(kilobytes) for kilobytes in found) * 1024


def test_pages_leave_when_their_tensor_was_read_and_come_again(default_gguf: Path) -> None:
    path = default_gguf.resolve()
    header = read_headers([path])
    files = GGUFTensorFiles(header, read_gguf_config(header))
    for name in files.names:
        files.stored(name)
    assert resident_bytes(path) < FEW_BYTES
    assert files.dense(TABLE).equal(files.dense(TABLE))
    assert resident_bytes(path) < FEW_BYTES
    assert str(path) in SMAPS.read_text()
    files.close()
    assert str(path) not in SMAPS.read_text()
