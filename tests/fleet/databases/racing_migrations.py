"""Two processes that migrate one database at once. Prints how each ended, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MANAGE = str(Path(__file__).resolve().parents[3] / "manage.py")

processes = [
    subprocess.Popen(
        [sys.executable, MANAGE, "migrate", "--verbosity", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for _ in range(3)
]
outputs = [process.communicate(timeout=450)[0] for process in processes]
print(json.dumps({"codes": [process.returncode for process in processes], "outputs": outputs}))
