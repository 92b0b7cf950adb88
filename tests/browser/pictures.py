"""Takes the pictures of the documentation anew: ``python -m tests.browser.pictures``.

They are of the seeded server's pages, as its operator sees them at 1440 by 900 pixels. The
playground's conversation is saved first: no engine answers here.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

from tests.browser.chromium import WIDE, Browser, look_at, running_chromium
from tests.browser.pages import ACCOUNT_IN_USE, BENCH, PASSWORD, REQUEST_ID, Who
from tests.browser.server import running_pages
from tests.live.serving import REPOSITORY_DIR

IMAGES_DIR = REPOSITORY_DIR / "docs" / "images"
PLAYGROUND = "/playground/"
PICTURES = {
    "dashboard": "/admin/",
    "playground": PLAYGROUND,
    "requests": "/requests/",
    "request": f"/requests/{REQUEST_ID}",
    "usage": "/usage/accounts",
    "model": "/admin/dashboard/model?name=tiny",
    "neuron": "/admin/dashboard/neuron?name=beast",
    "account": ACCOUNT_IN_USE,
    "bench": f"{BENCH}?model=tiny&scenario=chat:128",
    "api-reference": "/docs",
}
QUESTION = "How do I read a CSV file in Python, and what does each way cost?"
ANSWER = """Two ways, for a file of *n* rows:

| way | memory | when |
|---|---|---|
| `csv.DictReader` | one row | large files |
| `list(reader)` | $n$ rows | small ones |

```python
import csv

with open("usage.csv", newline="") as file:
    for row in csv.DictReader(file):
        print(row["model"], row["cost"])
```

See [the documentation](https://docs.python.org/3/library/csv.html) for **dialects**."""
STATE: dict[str, Any] = {
    "model": "tiny",
    "account": "research",
    "turns": [
        {"role": "user", "text": QUESTION},
        {"role": "assistant", "model": "tiny", "text": ANSWER, "finish": "stop"},
    ],
}
SAVE = """
    const csrf = document.getElementById("playground").dataset.csrf;
    const answer = await fetch(`/playground/conversations/${arguments[0]}?revision=0`, {
        method: "PUT",
        headers: {"Content-Type": "application/json", "X-CSRFToken": csrf},
        body: JSON.stringify(arguments[1]),
    });
    await Alpine.$data(document.querySelector(".pg-page")).open(arguments[0]);
    return answer.status;
"""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
    with (
        tempfile.TemporaryDirectory() as directory,
        running_chromium(Path(directory) / "chromium") as driver,
        running_pages(Path(directory)) as server,
    ):
        take(Browser(driver, server.url))


def take(browser: Browser) -> None:
    browser.start_anew(WIDE)
    browser.log_in(Who.OPERATOR, PASSWORD)
    for name, path in PICTURES.items():
        browser.open(path)
        if path == PLAYGROUND:
            browser.wait_for_text("Ask the model something")
            assert browser.run(SAVE, str(uuid.uuid4()), STATE) == 200
            browser.wait_for_text("See the documentation")
        look_at(browser, WIDE)
        browser.photograph_small(name, IMAGES_DIR)


if __name__ == "__main__":
    main()
