"""One set-up for every process, which takes over what libraries and servers had."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from helexa_site.program import REPOSITORY_DIR
from inference.logs.setup import configure_logging
from inference.settings.setting import SettingError
from tests.cases import each_case

PROGRAM = """
import logging, sys, threading, warnings
other = logging.getLogger("uvicorn")
other.addHandler(logging.StreamHandler(sys.stdout))
other.propagate = False
off = logging.getLogger("off")
off.propagate = False
from inference.logs.setup import configure_logging
configure_logging("neuron")
other.warning("from %s", "uvicorn\\nforged")
off.info("never shown")
off.warning("of a logger that is cut off")
logging.getLogger("celery.worker").info("too much")
warnings.warn("an old way")
def fail(word):
    raise ValueError(word)
thread = threading.Thread(target=fail, args=("in a thread",), name="worker")
thread.start()
thread.join()
fail("at the end")
"""


def run(program: str, log_format: str, level: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY_DIR,
        env={"HELEXA_LOG_FORMAT": log_format, "HELEXA_LOG_LEVEL": level},
        capture_output=True,
        text=True,
    )


def test_everything_is_a_record_of_one_line() -> None:
    outcome = run(PROGRAM, "json")
    assert (outcome.stdout, outcome.returncode) == ("", 1)
    records = [json.loads(line) for line in outcome.stderr.splitlines()]
    assert {entry["role"] for entry in records} == {"neuron"}
    assert [entry["level"] for entry in records] == [*3 * ["WARNING"], *2 * ["CRITICAL"]]
    library, cut_off, warned, in_thread, uncaught = records
    assert cut_off["message"] == "of a logger that is cut off"
    assert library["message"] == "from uvicorn\nforged"
    assert "an old way" in warned["message"]
    assert "worker" in in_thread["message"]
    assert "in a thread" in in_thread["exc"]
    assert "at the end" in uncaught["exc"]
    lines = run(PROGRAM, "").stderr.splitlines()
    shown = [line for line in lines if not line.startswith("    ")]
    assert len(shown) == 5, "text is the default"
    assert " WARNING neuron uvicorn: from uvicorn\\nforged" in shown[0]
    assert " CRITICAL neuron inference.logs.setup: " in shown[4]


LEVELS = """
import logging
from inference.logs.setup import configure_logging
configure_logging("neuron")
for name in ("inference.neuron.app", "inference.gateway", "httpx", "celery"):
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger(name), level)("")
"""


@each_case(
    ("word", "num_records"),
    [
        ("", (3, 3, 2, 2)),
        ("debug", (4, 4, 2, 2)),
        ("WARNING", (2, 2, 2, 2)),
        ("info,inference.neuron=debug", (4, 3, 2, 2)),
        (" inference=error , httpx=info ", (1, 1, 3, 2)),
    ],
)
def test_levels_are_the_operators(word: str, num_records: tuple[int, ...]) -> None:
    outcome = run(LEVELS, "json", word)
    loggers = Counter(json.loads(line)["logger"] for line in outcome.stderr.splitlines())
    names = ("inference.neuron.app", "inference.gateway", "httpx", "celery")
    assert tuple(loggers[name] for name in names) == num_records


@each_case(("name", "word"), [("HELEXA_LOG_FORMAT", "xml"), ("HELEXA_LOG_LEVEL", "loud")])
def test_formats_and_levels_that_do_not_exist_are_refused(name: str, word: str) -> None:
    with pytest.raises(SettingError, match=f"{name}="):
        configure_logging("gateway", environment={name: word})
