"""Blocking client of a hub. HELEXA_SOURCES names hubs beside Hugging Face, HF_ENDPOINT replaces it,
and HF_HUB_OFFLINE turns queries off."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path

from huggingface_hub import HfApi, constants, errors, get_session, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from fleet.errors import HubUnavailableError, RepositoryUnknownError, UnknownSourceError
from fleet.hub import HubRepository, problem_of
from inference.loading.hub_config import check_directory_config
from inference.loading.sources.files import (
    SAFETENSORS_NAME,
    ModelFiles,
    choose_files,
    config_files,
    is_safetensors,
    wanted_files,
)
from inference.loading.sources.hub import HuggingFaceHub, text_architecture
from inference.loading.sources.hub_sources import (
    HubSource,
    default_scheme,
    hub_schemes,
    hub_source,
)
from inference.models.families.gguf_keys import ROPE_FREQUENCIES
from inference.models.families.registry import may_read_images
from inference.protocol.load_errors import BadFileError
from inference.settings.storage import SOURCES

TIMEOUT_S = 10.0
"""Bounds each read."""
MAX_FOUND = 30
MAX_JSON_BYTES = 4_000_000
FIRST_BYTES = 4 * 1024**2
GROWTH = 4
PARTIAL = 206
GATED = (
    "{name} is gated: it needs a token that was granted access. Ask for access on the repository's "
    "page, and set {token} here and on the neurons"
)

TransportError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]

disable_progress_bars()


@dataclass(frozen=True, slots=True, kw_only=True)
class HubMatch:
    name: str
    num_downloads: int
    num_likes: int
    is_gated: bool


class HubClient:
    def __init__(self, scheme: str | None = None, *, endpoint: str | None = None) -> None:
        """``scheme``: ``None``: the default source. Raises ``UnknownSourceError``."""
        self._source = _source_known(scheme or default_scheme())
        own = self._source.endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
        self._endpoint = endpoint or own
        self._token = self._source.token
        self._api = HfApi(endpoint=self._endpoint, token=self._token)

    def repository(self, name: str, revision: str | None = None) -> HubRepository:
        """Raises ``HubUnavailableError``, ``RepositoryUnknownError``."""
        with self._named(name, revision):
            info, sizes = self._listed(name, revision)
            access_problem, problem = None, None
            try:
                problem = self._safetensors_problem(info, sizes)
            except GatedRepoError:
                access_problem = self._gated(info.id)
            return HubRepository(
                name=info.id,
                scheme=self._source.scheme,
                commit=info.sha or "",
                sizes=sizes,
                is_gated=bool(info.gated),
                gguf_architecture=text_architecture(info.gguf),
                safetensors_problem=problem,
                access_problem=access_problem,
            )

    def _listed(self, name: str, revision: str | None) -> tuple[ModelInfo, dict[str, int]]:
        info = self._api.model_info(name, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
        return info, {file.rfilename: file.size or 0 for file in info.siblings or []}

    def described(
        self, name: str, revision: str | None, wanted: str | None, free_bytes: int, scratch: Path
    ) -> ModelFiles:
        """Fetches the files that describe one model into ``scratch``: config.json, or GGUF files
        that are holes beyond their headers. ``wanted``, ``free_bytes``: as a load chooses. Raises
        ``HubUnavailableError``, ``RepositoryUnknownError``, ``LoadError``."""
        with self._named(name, revision):
            info, sizes = self._listed(name, revision)
            reads = may_read_images(text_architecture(info.gguf))
            chosen = choose_files(sizes, wanted_files(wanted), free_bytes, reads_images=reads)
            commit = info.sha or "main"
            if is_safetensors(chosen.weights[0]):
                hub = HuggingFaceHub(self._endpoint, self._token)
                directory = hub.fetch(info.id, commit, "config.json", scratch).parent
                return chosen.at(directory, lambda name: directory / name)
            paths = {name: scratch / f"{index}.gguf" for index, name in enumerate(chosen.names)}
            for name, path in paths.items():
                _fetch_header(
                    hf_hub_url(info.id, name, revision=commit, endpoint=self._endpoint),
                    path,
                    num_bytes=sizes[name],
                    headers=build_hf_headers(token=self._token),
                    timeout_s=TIMEOUT_S,
                )
            return chosen.at(scratch, paths.__getitem__)

    def search(self, words: str) -> tuple[HubMatch, ...]:
        """Most downloaded first. Raises ``HubUnavailableError``."""
        with self._named(words, None):
            # The library's own search has no time limit, and retries for 23 s without an answer.
            response = get_session().get(
                f"{self._endpoint}/api/models",
                params={"search": words, "sort": "downloads", "limit": MAX_FOUND},
                headers=build_hf_headers(token=self._token),
                timeout=TIMEOUT_S,
            )
            hf_raise_for_status(response)
            return tuple(
                HubMatch(
                    name=found["id"],
                    num_downloads=found.get("downloads") or 0,
                    num_likes=found.get("likes") or 0,
                    is_gated=bool(found.get("gated")),
                )
                for found in response.json()
            )

    def _safetensors_problem(self, info: ModelInfo, sizes: dict[str, int]) -> str | None:
        """Raises ``GatedRepoError`` where the hub hides their config."""
        if not any(SAFETENSORS_NAME.fullmatch(name) for name in sizes):
            return None
        small = {name for name, size in sizes.items() if 0 < size <= MAX_JSON_BYTES}
        names = config_files(small)
        if "config.json" not in names:
            return "There is no config.json that describes the model"
        hub = HuggingFaceHub(self._endpoint, self._token)
        with tempfile.TemporaryDirectory() as scratch:
            paths = [hub.fetch(info.id, info.sha or "main", one, Path(scratch)) for one in names]
            return problem_of(check_directory_config, paths[names.index("config.json")].parent)

    def _gated(self, name: str) -> str:
        return GATED.format(name=name, token=self._source.token_words)

    @contextmanager
    def _named(self, name: str, revision: str | None) -> Iterator[None]:
        if constants.HF_HUB_OFFLINE:
            raise HubUnavailableError("HF_HUB_OFFLINE is set, so the hub is not asked")
        try:
            yield
        except HFValidationError as error:
            raise RepositoryUnknownError(
                f"{name!r} is not a repository: write org/name, as in Qwen/Qwen3-0.6B"
            ) from error
        except RevisionNotFoundError as error:
            raise RepositoryUnknownError(f"{name} has no revision {revision!r}") from error
        except GatedRepoError:
            raise RepositoryUnknownError(self._gated(name)) from None
        except RepositoryNotFoundError as error:
            owner = self._source.owner[0].upper() + self._source.owner[1:]
            message = f"{owner} has no repository {name}, or it is private"
            raise RepositoryUnknownError(message) from error
        except HfHubHTTPError as error:
            raise HubUnavailableError(f"{self._endpoint} refused to answer: {error}") from error
        except JSONDecodeError as error:
            raise HubUnavailableError(
                f"What answers at {self._endpoint} is no hub: its answer is not JSON"
            ) from error
        except (TransportError, OfflineModeIsEnabled, LocalEntryNotFoundError, OSError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise HubUnavailableError(
                f"{self._endpoint} cannot be reached from here: {reason}. Models can be added "
                "by name all the same, where the neurons reach it; "
                f"{SOURCES.name if self._source.endpoint else 'HF_ENDPOINT'} names another hub"
            ) from error


def _fetch_header(
    url: str, path: Path, *, num_bytes: int, headers: Mapping[str, str], timeout_s: float
) -> None:
    """Fetches the beginning of a GGUF file until its header is whole; the rest of ``path`` is a
    hole. ``num_bytes``: of the whole file."""
    # Hosts without neurons may lack gguf.
    from inference.loading.gguf.header import MOST_HEADER_BYTES, read_header

    def fetch(first: int, end: int) -> None:
        """Bytes ``[first, end)``; reads no more from a server that ignores ranges."""
        wanted = {**headers, "Range": f"bytes={first}-{end - 1}"}
        with (
            get_session().stream(
                "GET", url, headers=wanted, timeout=timeout_s, follow_redirects=True
            ) as response,
            path.open("r+b") as file,
        ):
            hf_raise_for_status(response)
            at = first if response.status_code == PARTIAL else 0
            file.seek(at)
            for piece in response.iter_bytes():
                file.write(piece[: end - at])
                at += len(piece)
                if at >= end:
                    return
        raise BadFileError(f"{path.name} ends after {at} of {end} bytes; ask again")

    with path.open("wb") as file:
        file.truncate(num_bytes)
    done, wanted = 0, min(FIRST_BYTES, num_bytes)
    while True:
        fetch(done, wanted)
        done = wanted
        try:
            header = read_header(path)
        except BadFileError:
            if done >= min(num_bytes, MOST_HEADER_BYTES):
                raise
        else:
            if header.data_offset <= done or done == num_bytes:
                break
        wanted = min(GROWTH * done, num_bytes)
    # A config needs these numbers, which are among the weights.
    info = header.tensors.get(ROPE_FREQUENCIES)
    if info is not None and info.offset + info.num_bytes > done:
        fetch(info.offset, info.offset + info.num_bytes)


def _source_known(scheme: str) -> HubSource:
    found = hub_source(scheme)
    if found is None:
        known = ", ".join(hub_schemes())
        raise UnknownSourceError(
            f"{scheme!r} is no source that is listed here: there is {known}, and {SOURCES.name} "
            "names others"
        )
    return found
