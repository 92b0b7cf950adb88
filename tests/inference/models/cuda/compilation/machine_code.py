"""Properties of a compiled kernel's machine code that decide its speed; no card is needed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import triton

DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
LABEL = re.compile(r"^(\.L_x_\d+):")
INSTRUCTION = re.compile(r"^/\*[0-9a-f]+\*/\s+(.*)")
BRANCH = re.compile(r"\bBRA\S*\s.*?`\((\.L_x_\d+)\)")


def loop_instructions(cubin: bytes) -> int:
    """Counts the instructions of the longest loop, from its label to the branch back."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [DISASSEMBLER, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    labels: dict[str, int] = {}
    longest = count = 0
    for line in map(str.strip, listing.splitlines()):
        if label := LABEL.match(line):
            labels[label[1]] = count
        elif instruction := INSTRUCTION.match(line):
            count += 1
            back = BRANCH.search(instruction[1])
            if back and back[1] in labels:
                longest = max(longest, count - labels[back[1]])
    return longest
