"""The command line of scripts/try-clients: real clients against a real server, a line for each
feature.

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
from tests.live.clients.agents import AGENTS, Stage, rehearse, try_agent
from tests.live.clients.sdk_programs import PROGRAMS, Clients, Tried, try_program
from tests.live.scripted.model import ScriptedServe
from tests.live.serving import Serve, create_model


def main() -> int:
    parser = argparse.ArgumentParser(prog="try-clients", description=__doc__)
    parser.add_argument("--dir", type=Path, help="where the clients are kept (default: nowhere)")
    parser.add_argument("--no-install", action="store_true", help="--dir has them already")
    parser.add_argument("--only", default="", help="what has this in its name")
    arguments = parser.parse_args()
    problems = []
    with tempfile.TemporaryDirectory(prefix="helexa-clients-") as temporary:
        clients = Clients(arguments.dir or Path(temporary, "clients"))
        if not arguments.no_install:
            clients.install()
        clients.take_programs()
        for row in try_clients(clients, Path(temporary), arguments.only.lower()):
            print(f"{row.client}: {row.feature}: {row.problem or 'works'}", flush=True)
            problems.append(row.problem)
    return 1 if not problems or any(problems) else 0


def try_clients(clients: Clients, run_dir: Path, only: str) -> Iterator[Tried]:
    """``only``: those with this in their name."""
    programs = [one for one in PROGRAMS if only in f"{one.file} {one.package}"]
    agents = [one for one in AGENTS if only in one.name.lower()]
    scripts = [one for one in programs if one.server == "scripted"]
    if agents or scripts:
        with ScriptedServe(run_dir / "scripted", run_dir / "scripts") as serve:
            model = serve.models["hermes"]
            rehearse(model)
            for program in scripts:
                yield from try_program(program, clients, serve.url)
            for agent in agents:
                home, project = (run_dir / agent.name / name for name in ("home", "project"))
                home.mkdir(parents=True)
                project.mkdir()
                yield from try_agent(agent, Stage(clients, serve.url, model, home, project))
    if len(scripts) < len(programs):
        fetch_default_model()
        fetch_embedding_model()
        (run_dir / "real").mkdir()
        (run_dir / "real" / "models").symlink_to(MODEL_CACHE_DIR)
        fields = {"source": SOURCE, "revision": REVISION, "sha256": SHA256}
        with Serve(run_dir / "real") as serve:
            create_model(serve, name="all-minilm-l6-v2", **fields)
            for program in programs:
                if program.server == "real":
                    yield from try_program(program, clients, serve.url)


if __name__ == "__main__":
    sys.exit(main())
