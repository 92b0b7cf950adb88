"""One whole server for most of the live tests: starting it costs seconds. All but one module are
slow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anthropic
import openai
import pytest

from tests.live.scripted.model import ScriptedModel, ScriptedServe
from tests.live.serving import Serve
from tests.spreading import SERVERS, ends_with

LIVE_DIR = Path(__file__).resolve().parent
IN_THE_SUITE = LIVE_DIR / "test_one_serve.py"
_running = {server: ExitStack() for server in SERVERS}
"""How each server, and what runs beside it, is ended."""


def is_slow(path: Path) -> bool:
    return path.is_relative_to(LIVE_DIR) and path != IN_THE_SUITE


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out their modules are not even imported: the SDKs take seconds."""
    is_left_out = config.getoption("markexpr") == "not slow" and collection_path.is_file()
    return True if is_left_out and is_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before -m selects by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if server := ends_with(item, nextitem):
        _running[server].close()


@pytest.fixture(scope="session")
def server_dir(
    tmp_path_factory: pytest.TempPathFactory,
    model_cache_dir: Path,
    native_cache_dir: Path,
    migrated_sqlite: Path,
    default_gguf: Path,
) -> Path:
    """A data directory in which the default model is downloaded already, and the database is
    migrated."""
    data_dir = with_caches(tmp_path_factory.mktemp("live"), model_cache_dir, native_cache_dir)
    shutil.copy(migrated_sqlite, data_dir)
    return data_dir


def with_caches(data_dir: Path, model_cache_dir: Path, native_cache_dir: Path) -> Path:
    """``data_dir`` with the downloaded models, and the native decoder once it is compiled."""
    data_dir.mkdir(exist_ok=True)
    (data_dir / "models").symlink_to(model_cache_dir)
    (data_dir / "cache").mkdir()
    (data_dir / "cache" / "native").symlink_to(native_cache_dir)
    return data_dir


@pytest.fixture(scope="session")
def shared_server(server_dir: Path) -> Iterator[Serve]:
    with _running["shared_server"] as running:
        yield running.enter_context(Serve(server_dir))


@pytest.fixture
def helexa(shared_server: Serve) -> Serve:
    """The shared server, healthy: what an earlier test broke has come back."""
    shared_server.wait(shared_server.is_healthy, "the shared server is healthy")
    return shared_server


@pytest.fixture(scope="session")
def scripted_server(
    tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path
) -> Iterator[ScriptedServe]:
    """One server for all tests that script what a model writes."""
    directory = tmp_path_factory.mktemp("scripted")
    (directory / "var").mkdir()
    shutil.copy(migrated_sqlite, directory / "var")
    with _running["scripted_server"] as running:
        serve = ScriptedServe(directory / "var", directory / "scripts")
        yield running.enter_context(serve)


@pytest.fixture
def hermes(scripted_server: ScriptedServe) -> ScriptedModel:
    """Thinks, and calls tools with JSON in ``<tool_call>``."""
    return scripted_server.models["hermes"]


@pytest.fixture(scope="session")
def openai_client(scripted_server: ScriptedServe) -> Iterator[openai.OpenAI]:
    url = f"{scripted_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def anthropic_client(scripted_server: ScriptedServe) -> Iterator[anthropic.Anthropic]:
    url = scripted_server.url
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client
