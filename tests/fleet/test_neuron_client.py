"""Messages to neurons, as the first ones of a process."""

from __future__ import annotations

import os
import subprocess
import sys

from helexa_site.program import REPOSITORY_DIR

EIGHT_AT_ONCE = """
import sys, threading
import django
django.setup()
from fleet import neuron_client

class App:
    def send_task(self, *_, **__):
        neuron_client._sending_app()

def send():
    together.wait()
    neuron_client.send("a task", "beast")
    sent.append(1)

neuron_client.app, sent, together = App(), [], threading.Barrier(8)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=send) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(sent) != 8)
"""


def test_the_first_messages_of_several_threads_are_all_sent() -> None:
    """Celery is imported for the first one."""
    subprocess.run(
        [sys.executable, "-c", EIGHT_AT_ONCE], cwd=REPOSITORY_DIR, env=os.environ, check=True
    )
