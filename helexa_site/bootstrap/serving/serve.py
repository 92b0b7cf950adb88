"""``manage.py serve``: everything, on this machine, until a signal.

    main thread     claim the data directory ─▶ wait for a signal or a failure ─▶ stop every child
    start thread    Redis ─▶ neuron ─▶ database ─▶ control, gateway ─▶ the model answers

``shutdown`` explains why there are two.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from functools import partial

from helexa_site.bootstrap.arguments import ServeOptions
from helexa_site.bootstrap.console import print_step
from helexa_site.bootstrap.errors import PortInUseError
from helexa_site.bootstrap.private_redis.kept_share import with_kept_share
from helexa_site.bootstrap.processes.guardian import Guardian
from helexa_site.bootstrap.processes.shutdown import Shutdown
from helexa_site.bootstrap.processes.supervisor import Supervisor
from helexa_site.bootstrap.serving.data_directory import claimed_data_directory
from helexa_site.bootstrap.serving.ports import try_to_listen
from helexa_site.bootstrap.serving.start import start
from helexa_site.config import Config, read_config
from inference.logs.setup import configure_logging
from inference.settings.storage import REDIS_URL

START_GRACE_S = 2.0
"""How long a start that is stopped has to end. It ends with the children that it waits for; what it
does itself, migrating, is not waited for any longer."""


def serve(options: ServeOptions) -> int:
    """Run until a signal, then stop every child. Returns the exit code.

    Raises ``BootstrapError`` with one line when it cannot start.
    """
    shutdown = Shutdown()
    config = _configure(options)
    with claimed_data_directory(config.data_dir) as data:
        check_ports(options)
        print_step("data", str(data.path))
        if not REDIS_URL.read(os.environ):
            options = with_kept_share(options, data.redis_dir)
        with (
            Guardian(inherit=[data.lock_fd]) as guardian,
            Supervisor(logs_dir=data.logs_dir, guardian=guardian) as supervisor,
        ):
            step = partial(start, options, config, data, supervisor)
            starting = threading.Thread(
                target=shutdown.report_failure_of, args=(step,), name="start", daemon=True
            )
            starting.start()
            number = shutdown.wait()
            print_step(
                "stopping", f"{number.name}: open answers are finished first; again: nothing is"
            )
            threading.Thread(
                target=_kill_at_second_signal, args=(shutdown, supervisor), daemon=True
            ).start()
        starting.join(START_GRACE_S)
    print_step("stopped", "nothing is left running")
    return 0


def _kill_at_second_signal(shutdown: Shutdown, supervisor: Supervisor) -> None:
    with contextlib.suppress(BaseException):  # what the start failed with was waited for once
        number = shutdown.wait()
        print_step("stopping", f"{number.name} again: ending every process at once")
        supervisor.kill()


def _configure(options: ServeOptions) -> Config:
    """What this process and its children read from the environment from here on."""
    if options.data_dir is not None:
        os.environ["HELEXA_DATA_DIR"] = str(options.data_dir.absolute())
    config = read_config()
    configure_logging("serve", level=logging.WARNING)
    return config


def check_ports(options: ServeOptions) -> None:
    """Raises ``PortInUseError`` early: a process that starts later would only report its end."""
    _check_port(options.host, options.port, "--port")
    if options.share is not None:
        _check_port(options.share.host or "0.0.0.0", options.share.port, "--share")


def _check_port(host: str, port: int, flag: str) -> None:
    error = try_to_listen(host, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise PortInUseError(
            f"port {port} on {host} is in use; stop what listens there, "
            f"or choose another with {flag}"
        )
    raise PortInUseError(f"cannot listen on {host} port {port}: {error.strerror}")
