"""The README's Python examples, with the newest version of each SDK."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from tests.live.clients.documented import filled_in
from tests.live.clients.installed import Clients, NotInstalledError
from tests.live.clients.tried import Tried
from tests.strangers.docs.blocks import all_blocks

SDKS = ("openai", "anthropic")
"""The package, and its environment."""
EXAMPLE_TIMEOUT_S = 120.0
OUTPUT_TAIL_CHARACTERS = 600


def try_readme(sdk: str, clients: Clients, url: str) -> Iterator[Tried]:
    try:
        version = clients.python_version(sdk, sdk)
    except NotInstalledError as error:
        yield Tried(sdk, "", "installed", str(error))
        return
    (example,) = (
        block
        for block in all_blocks()
        if block.page == "README.md" and f"from {sdk} import" in block.text
    )
    code = filled_in(example.text, url=url, model="", key="")
    ended = subprocess.run(
        [clients.python_bin("python", sdk), "-c", code],
        capture_output=True,
        text=True,
        timeout=EXAMPLE_TIMEOUT_S,
        check=False,
    )
    output = ended.stdout + ended.stderr
    problem = None if "Paris" in ended.stdout else output[-OUTPUT_TAIL_CHARACTERS:]
    yield Tried(sdk, version, "README's example", problem)
