"""The start, step by step, as a thread of serve's runs it.

    Redis ─▶ neuron ─▶ database ─▶ control, gateway ─▶ the model answers

A process starts as soon as what it needs is there; the slow ones start first.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

from helexa_site.bootstrap.arguments import ServeOptions, base_url, is_loopback, shown_urls
from helexa_site.bootstrap.console import print_line, print_step
from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.bootstrap.private_redis.redis_server import (
    PRIVATE,
    configure_private_redis,
    discard_private_redis,
    find_redis_server,
    wait_for_redis,
)
from helexa_site.bootstrap.private_redis.sharing import Share, ensure_tls
from helexa_site.bootstrap.processes.children import (
    control_spec,
    gateway_spec,
    neuron_spec,
    redis_spec,
)
from helexa_site.bootstrap.processes.supervisor import Supervisor
from helexa_site.bootstrap.serving import readiness
from helexa_site.bootstrap.serving.data_directory import DataDirectory
from helexa_site.bootstrap.serving.first_key import first_key_lines
from helexa_site.bootstrap.serving.readiness import EnsureWanted
from helexa_site.bootstrap.serving.running_serve import RunningServe, forget_running, write_running
from helexa_site.config import Config
from helexa_site.program import pasteable_program, program
from helexa_site.secret_key import SecretKeyError, secret_key
from inference.settings.storage import DATABASE_URL, REDIS_URL

GIVEN_REDIS_TIMEOUT_S = 5.0


def start(
    options: ServeOptions, config: Config, data: DataDirectory, supervisor: Supervisor
) -> None:
    """Return when requests are answered. Raises ``BootstrapError``, and ``StoppingError`` when the
    supervisor was stopped meanwhile."""
    _ensure_secret_key(config)
    redis_url = REDIS_URL.read(os.environ)
    if redis_url:
        wait_for_redis(redis_url, timeout_s=GIVEN_REDIS_TIMEOUT_S)
        print_step("redis", "the one in REDIS_URL answers")
    else:
        redis_url = _start_private_redis(data, supervisor, options.share)
    os.environ["REDIS_URL"] = redis_url
    os.environ["HELEXA_DATA_DIR"] = str(data.path)
    if options.with_neuron:
        supervisor.start(neuron_spec())
        print_step("neuron", "starting")

    # Django reads its settings when it is imported, which is now.
    from helexa_site.bootstrap.serving.database import has_keys, prepare_database, prepare_fleet

    password = prepare_database(with_model=options.with_model)
    url = base_url(options.host, options.port)
    shown_url, *more_urls = shown_urls(options.host, options.port)
    try:
        prepare_fleet(with_neuron=options.with_neuron, share=options.share)
        supervisor.start(control_spec())
        _start_gateway(options, config, supervisor)
        _write_serve_file(url, data, supervisor)
        readiness.wait_for_gateway(
            url, data.path, supervisor.ensure_running, needs_neuron=options.with_neuron
        )
        if has_model := options.with_model and options.with_neuron:
            has_model = wait_for_default_model(url, supervisor.ensure_running)
        print_line(f"ready: {shown_url}")
        if more_urls:
            print_step("gateway", f"also at {', '.join(more_urls)}")
    finally:
        # Whatever happened: the password is stored nowhere in the clear.
        print_step("admin", f"{shown_url}/admin/")
        if password is not None:
            print_step("login", f"admin, password {password} (shown this once)")
    if not has_keys():
        from inference.gateway.request.identify import allows_anonymous  # needs Django's settings

        is_open = allows_anonymous(replace(config, listen_host=options.host))
        for line in first_key_lines(
            data.path,
            pasteable_program(),
            is_open=is_open,
            has_database_url=bool(DATABASE_URL.read(os.environ)),
        ):
            print_step("keys", line)
    if options.share is not None:
        print_step(
            "share", f"{options.share.address}, for hosts that `{program()} neurons invite` invites"
        )
    if has_model:
        print_step("try", readiness.curl_line(shown_url))


def wait_for_default_model(url: str, ensure_wanted: EnsureWanted) -> bool:
    """Wait until the default model answers, where it is loaded at start and not by its first
    request. Returns whether the catalogue offers it at all."""
    from helexa_site.bootstrap.serving.database import default_model_entry

    name, entry = readiness.DEFAULT_MODEL, default_model_entry()
    if entry is None:
        print_step("model", f"{name} is not offered: it was disabled or deleted in the catalogue")
    elif entry.is_kept_loaded:
        readiness.wait_for_answer(url, entry, ensure_wanted)
    else:
        print_step("model", f"{name} is not pinned: it is loaded on request")
    return entry is not None


def _ensure_secret_key(config: Config) -> None:
    try:
        secret_key(config)
    except SecretKeyError as error:
        raise BootstrapError(str(error)) from error


def _start_private_redis(data: DataDirectory, supervisor: Supervisor, share: Share | None) -> str:
    if share is not None and share.is_tls:
        share.certificate()
        ensure_tls(find_redis_server())
    listening = PRIVATE if share is None else share.directives()
    server = configure_private_redis(data.redis_dir, listening=listening)
    supervisor.on_stopped(lambda: discard_private_redis(server, data.redis_dir))
    child = supervisor.start(redis_spec(server))
    wait_for_redis(
        server.url, is_alive=lambda: child.num_failures == 0 and not supervisor.is_stopping
    )
    print_step("redis", f"private, started ({Path(server.command[0]).name})")
    return server.url


def _write_serve_file(url: str, data: DataDirectory, supervisor: Supervisor) -> None:
    key = os.environ["HELEXA_SERVE_KEY"]
    running = RunningServe(url=url, key=key, process_id=os.getpid())
    write_running(data.path, running)
    supervisor.on_stopped(lambda: forget_running(data.path))


def _start_gateway(options: ServeOptions, config: Config, supervisor: Supervisor) -> None:
    # Ours alone: with it the gateway can be asked how it is, wherever it listens.
    os.environ.setdefault("HELEXA_SERVE_KEY", secrets.token_urlsafe(32))
    supervisor.start(gateway_spec(options.host, options.port))
    print_step("gateway", f"starting on {options.host} port {options.port}")
    if not is_loopback(options.host) and not (config.api_key or config.allow_anonymous):
        print_step(
            "gateway", "clients need an API key, or HELEXA_ALLOW_ANONYMOUS=1 serves anybody who"
        )
        print_step("", "reaches the port")
