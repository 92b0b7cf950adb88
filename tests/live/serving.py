"""A whole ``manage.py serve`` as an object: start it, read what it prints, find its processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import psutil

from benchmarks.ports import free_port
from tests.processes import command_line
from tests.time_limit import TimeLimitExceeded

REPOSITORY_DIR = Path(__file__).resolve().parent.parent.parent
MANAGE = (sys.executable, str(REPOSITORY_DIR / "manage.py"))
SERVE_KEY = "what-serve-asks-its-gateway-with"
MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
LONG: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True, "min_tokens": 1500}
"""An answer that takes seconds, so that something can happen meanwhile."""
READY_TIMEOUT_S = 480.0
WAIT_TIMEOUT_S = 170.0
STOP_TIMEOUT_S = 90.0
"""Serve gives its programs ten seconds (test_supervision.py checks that); a busy machine, more."""
POLL_INTERVAL_S, LONG_POLL_INTERVAL_S = 0.02, 0.1
"""The intervals between two looks: at first, and where it takes a second and more, since asking
costs the server as well."""
LOG_TAIL_CHARACTERS = 3000
MARK_VARIABLE = "HELEXA_TEST_SERVE"
Found = TypeVar("Found")
Events = list[dict[str, Any]]
READY = re.compile(r"^ready: (http://\S+)$", re.MULTILINE)

_CLIENT = httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0), timeout=30.0)
"""The client of those who look again and again: reading the system's certificates takes longer than
asking."""

COMMAND_LINES = {
    "redis": re.compile(r"redis-server|valkey-server"),
    "gateway": re.compile(r"(manage\.py|-m helexa_site) gateway"),
    "neuron": re.compile(r"-m inference\.neuron"),
    "engine": re.compile(r"-m inference\.engine"),
    "guardian": re.compile(r"guardian\.py"),
}


def wait_until(is_done: Callable[[], Found], what: str, timeout_s: float = WAIT_TIMEOUT_S) -> Found:
    """The first true value of ``is_done``; a connection that fails counts as not yet."""
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < timeout_s:
        with contextlib.suppress(httpx.TransportError):
            if found := is_done():
                return found
        time.sleep(POLL_INTERVAL_S if waited_s < 1 else LONG_POLL_INTERVAL_S)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


class Program:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_dir: Path,
        cwd: Path = REPOSITORY_DIR,
    ) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._cwd = cwd
        self._log_path = log_dir / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env=dict(self._environment),
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_TIMEOUT_S)

    def end(self) -> None:
        """However it stands, it is gone after this."""
        self.process.terminate()
        try:
            self.process.wait(WAIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def output(self) -> str:
        return self._log_path.read_text(errors="replace")

    def log_tail(self) -> str:
        return f"--- {self.name}\n{self.output[-LOG_TAIL_CHARACTERS:]}"

    def wait_for(self, words: str) -> None:
        def is_printed() -> bool:
            assert self.process.poll() is None, f"it ended:\n{self.log_tail()}"
            return words in self.output

        try:
            wait_until(is_printed, f"{self.name} prints {words!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_tail()}") from None


class Serve(Program):
    """One life of ``manage.py serve``; its log is beside its data. As a context it is ready, and
    ended afterwards."""

    def __init__(self, data_dir: Path, *flags: str, port: int | None = None, **env: str) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._mark = uuid.uuid4().hex
        place = ("--data-dir", str(data_dir), "--port", str(self.port))
        command = [*MANAGE, "serve", *place, *flags]
        environment = serve_environment() | {MARK_VARIABLE: self._mark} | env
        super().__init__(f"serve-{self._mark}", command, environment, data_dir.parent)

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    def wait_ready(self) -> str:

        def ready() -> str | None:
            assert self.process.poll() is None, f"serve ended:\n{self.output}"
            match = READY.search(self.output)
            return match and match[1]

        return self.wait(ready, "ready", READY_TIMEOUT_S)

    def wait_printed(self, pattern: str) -> re.Match[str]:
        """The first line that ``pattern`` matches. Several lines come after the ready line."""
        form = re.compile(pattern, re.MULTILINE)
        return self.wait(lambda: form.search(self.output), f"a line like {pattern}")

    def wait(
        self, is_done: Callable[[], Found], what: str, timeout_s: float = WAIT_TIMEOUT_S
    ) -> Found:
        """``wait_until``, which describes the server where it fails."""
        try:
            return wait_until(is_done, what, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def wait_ended(self) -> int:
        return self.process.wait(WAIT_TIMEOUT_S)

    def describe(self) -> str:
        try:
            health = json.dumps(self.health(), indent=1)
        except (httpx.HTTPError, ValueError) as error:
            health = f"no answer: {error}"
        files = sorted((self.data_dir / "logs").glob("*.log"))
        logs = [f"--- {file.name}\n{file.read_text()[-LOG_TAIL_CHARACTERS:]}" for file in files]
        return "\n".join([self.output, f"--- /health\n{health}", *logs])

    def processes(self) -> list[psutil.Process]:
        """Every process of this serve but itself, wherever in the tree: they inherit a mark."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def find(self, name: str) -> psutil.Process:
        """The one process of that name. Waits while there is none, or two: a process that starts
        a program looks like itself until that runs."""

        def found() -> psutil.Process | None:
            matching = [process for process in self.processes() if is_named(process, name)]
            return matching[0] if len(matching) == 1 else None

        return wait_until(found, f"one process named {name}")

    def stop(self) -> float:
        """SIGTERM and the seconds until the end; asserts that it ends in order, in time, and
        that nothing is left."""
        started_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.wait_ended()
        took_s = time.monotonic() - started_s
        assert code == 0, self.output
        assert self.processes() == []
        return took_s

    def end(self) -> None:
        """However it stands, nothing is left after this."""
        super().end()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _is_ours(self, process: psutil.Process) -> bool:
        if process.pid == self.process.pid:
            return False
        try:
            is_marked = process.environ().get(MARK_VARIABLE) == self._mark
            return is_marked and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    # What a client sees.

    def health(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {SERVE_KEY}"}
        found: dict[str, Any] = _CLIENT.get(f"{self.url}/health", headers=headers).json()
        return found

    def replica(self, model: str = MODEL) -> dict[str, Any] | None:
        replicas = [one for neuron in self.health()["neurons"] for one in neuron["replicas"]]
        return next((one for one in replicas if one["model"] == model), None)

    def is_healthy(self) -> bool:
        return bool(self.health()["status"] == "ok")

    def chat(self, **fields: Any) -> httpx.Response:
        """A request that is not answered in time fails with what ``describe`` returns then."""
        url = f"{self.url}/v1/chat/completions"
        try:
            return httpx.post(url, json=chat_body(**fields), timeout=WAIT_TIMEOUT_S)
        except (httpx.TimeoutException, TimeLimitExceeded) as error:
            error.add_note(self.describe())
            raise

    def answers(self) -> bool:
        response = self.chat()
        return response.status_code == 200 and "Paris" in response.text

    def answer(self, **fields: Any) -> str:
        return text_of(self.chat(**fields))

    @contextlib.contextmanager
    def stream(self, headers: dict[str, str] | None = None, **fields: Any) -> Iterator[Stream]:
        body = chat_body(**fields) | {"stream": True}
        url = f"{self.url}/v1/chat/completions"
        with httpx.stream(
            "POST", url, json=body, headers=headers, timeout=WAIT_TIMEOUT_S
        ) as response:
            yield Stream(response)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def events_of(received: str) -> Events:
    """The events of a whole stream, without the word that ends it."""
    datas = [
        line.removeprefix("data: ") for line in received.splitlines() if line.startswith("data: ")
    ]
    return [json.loads(data) for data in datas if data != "[DONE]"]


def chat_text(chunks: Events) -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


class Stream:
    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[str]:
        """The ``data`` of each event; keep-alive comments are skipped."""
        for line in self._lines:
            if line.startswith("data: "):
                yield line.removeprefix("data: ")

    def next_text(self) -> str:
        for data in self:
            choices = json.loads(data).get("choices")
            if choices and (text := choices[0]["delta"].get("content")):
                return str(text)
        raise AssertionError("the stream ended")


def chat_body(**fields: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": QUESTION}]
    return {"model": MODEL, "messages": question, "temperature": 0} | fields


def is_named(process: psutil.Process, name: str) -> bool:
    return bool(COMMAND_LINES[name].search(" ".join(command_line(process))))


def serve_environment() -> dict[str, str]:
    """Ours without the variables that would point serve at another database, Redis or keys."""
    unwanted = ("DATABASE_URL", "REDIS_URL", "HELEXA_API_KEY", "HELEXA_ALLOW_ANONYMOUS")
    ours = {name: value for name, value in os.environ.items() if name not in unwanted}
    return ours | {"HELEXA_SERVE_KEY": SERVE_KEY}


IMPORTS = "from fleet import services; from metering.audit import COMMAND\n"
MAKE_KEY = """
from metering.services import account_create, key_create
account = account_create(actor=COMMAND, name="operators")
print(key_create(actor=COMMAND, account=account, scopes=["fleet:write"]).key)
"""


def create_model(helexa: Serve, *, name: str, **fields: object) -> None:
    operate(helexa, "POST", "/api/catalogue", name=name, **fields)
    wait_until_offered(helexa, name, 200)


def operate(helexa: Serve, method: str, path: str, **body: object) -> None:
    response = httpx.request(
        method,
        helexa.url + path,
        json=body,
        headers={"Authorization": f"Bearer {operator_key(helexa)}"},
        timeout=WAIT_TIMEOUT_S,
    )
    assert response.is_success, response.text


@cache
def operator_key(helexa: Serve) -> str:
    """A key that may change the fleet. The first who needs it makes it: that takes a process, which
    takes seconds to start."""
    return run(helexa, MAKE_KEY).strip()


def run(helexa: Serve, code: str) -> str:
    """What it prints, in Django's shell on the server's machine."""
    environment = helexa.find("gateway").environ()
    return manage(environment, "shell", "-v", "0", "-c", IMPORTS + code)


def manage(environment: Mapping[str, str], *words: str) -> str:
    """What a command prints, run as an operator beside a gateway would."""
    done = subprocess.run(
        [*MANAGE, *words],
        env=environment,
        cwd=REPOSITORY_DIR,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_until_offered(helexa: Serve, name: str, status: int) -> None:
    url = f"{helexa.url}/v1/models/{name}"
    wait_until(lambda: httpx.get(url, timeout=30.0).status_code == status, "the catalogue is read")
