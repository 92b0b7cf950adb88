"""What the neuron's worker writes into its log."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEURON = """
from inference.neuron.process.celery_app import create_app, create_worker
create_worker(create_app(name="n", redis_url="redis://127.0.0.1:1"), name="n")
"""
CONTROL = """
from celery.signals import celeryd_after_setup
import helexa_site.celery
warnings.filterwarnings("always", category=CPendingDeprecationWarning)
celeryd_after_setup.send(sender="control", instance=None, conf=None)
"""
WARN = """
from celery.exceptions import CPendingDeprecationWarning
warnings.warn("a change in Celery 6", CPendingDeprecationWarning)
print("warned")
"""


@pytest.mark.parametrize("program", [NEURON, CONTROL], ids=["neuron", "control"])
def test_changes_of_the_next_celery_do_not_fill_the_log(program: str) -> None:
    """A process of its own loads Celery: a worker changes how warnings are shown."""
    head = "import warnings\nfrom celery.exceptions import CPendingDeprecationWarning\n"
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", head + program + WARN],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.endswith("warned\n"), done.stderr
    assert "a change in Celery 6" not in done.stderr
