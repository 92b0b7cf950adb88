"""A hub of Hugging Face's protocol: what a repository holds, and its files by way of the cache.

    <target>.incomplete ─▶ GET, Range: bytes=<its size>- ─▶ checked ─▶ <target>, by one rename

With HF_HUB_OFFLINE nothing is requested. huggingface_hub never resumes a file, so blobs are
transferred here, and linked by huggingface_hub. A blob's name, its etag, stands for its bytes, so a
partial file continues the same file. One process at a time writes it.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import httpx2
from huggingface_hub import (
    HfApi,
    errors,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    is_offline_mode,
    set_client_factory,
)
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from inference.loading.sources.cached import PendingFile, partial_of
from inference.loading.sources.disk import check_sha256
from inference.loading.sources.hub_sources import repository_dir
from inference.models.families.tower_gguf import ARCHITECTURE as PROJECTOR_ARCHITECTURE
from inference.protocol.load_errors import HashMismatchError
from inference.proxies import UnsupportedProxyError, proxy_for

ANSWER_LIMIT_S = 10.0
"""Limit of each read of a response."""
SHA256 = re.compile(r"[0-9a-f]{64}")
"""The etag of a large file is its hash; that of a small one is git's."""
PIECE_BYTES = 10 * 10**9
"""Larger files come in ``Range`` pieces: the hub's network serves at most 50 GB at once."""
# The base of its HTTP client's errors: the client itself is huggingface_hub's own affair.
TransportError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]


def open_client() -> httpx2.Client:
    """Redirects and timeouts are those of huggingface_hub, which sets timeouts by request."""
    return httpx2.Client(transport=ProxyingTransport(), follow_redirects=True, timeout=None)


class ProxyingTransport(httpx2.BaseTransport):
    """Chooses the proxy of each request: a hub redirects to other hosts. With HF_HUB_OFFLINE
    nothing is asked. For many threads."""

    def __init__(self) -> None:
        self._by_proxy: dict[str | None, httpx2.HTTPTransport] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if is_offline_mode():
            raise OfflineModeIsEnabled(f"{request.url}: HF_HUB_OFFLINE is set")
        try:
            proxy = proxy_for(str(request.url))
        except UnsupportedProxyError as error:
            raise httpx2.ProxyError(str(error), request=request) from error
        if proxy not in self._by_proxy:
            self._by_proxy.setdefault(proxy, httpx2.HTTPTransport(proxy=proxy))
        return self._by_proxy[proxy].handle_request(request)

    def close(self) -> None:
        for transport in self._by_proxy.values():
            transport.close()


set_client_factory(open_client)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryListing:
    commit: str
    files: Mapping[str, PendingFile]
    gguf_architecture: str | None = None
    """As the hub read it from one of the repository's GGUF files."""

    @property
    def sizes(self) -> dict[str, int]:
        return {name: file.num_bytes for name, file in self.files.items()}


def text_architecture(gguf: Mapping[str, Any] | None) -> str | None:
    """``None`` where the hub read an mmproj file."""
    found = (gguf or {}).get("architecture")
    return None if found == PROJECTOR_ARCHITECTURE else found


class HuggingFaceHub:
    """Raises huggingface_hub's errors."""

    def __init__(self, endpoint: str | None = None, token: str | bool | None = None) -> None:
        self._endpoint = endpoint
        self._token = token

    def list_files(self, repo: str, revision: str | None) -> RepositoryListing:
        api = HfApi(endpoint=self._endpoint, token=self._token)
        info = api.model_info(repo, revision=revision, files_metadata=True)
        return RepositoryListing(
            commit=info.sha or revision or "main",
            files={
                sibling.rfilename: PendingFile(
                    num_bytes=sibling.size or 0,
                    etag=(sibling.lfs.sha256 if sibling.lfs else sibling.blob_id) or "",
                )
                for sibling in info.siblings or []
            },
            gguf_architecture=text_architecture(info.gguf),
        )

    def commit(self, repo: str, revision: str | None) -> str | None:
        api = HfApi(endpoint=self._endpoint, token=self._token)
        try:
            return api.model_info(repo, revision=revision, timeout=ANSWER_LIMIT_S).sha
        except (HfHubHTTPError, HFValidationError, TransportError, OSError):
            return None

    def fetch(self, repo: str, commit: str, name: str, cache_dir: Path) -> Path:
        common: dict[str, Any] = {"endpoint": self._endpoint, "token": self._token}
        url = hf_hub_url(repo, name, revision=commit, endpoint=self._endpoint)
        headers = build_hf_headers(token=self._token)
        found = get_hf_file_metadata(url, headers=headers, **common)
        if found.etag and found.size is not None:
            blob = repository_dir(cache_dir, repo) / "blobs" / found.etag
            blob.parent.mkdir(parents=True, exist_ok=True)
            is_sha256 = SHA256.fullmatch(found.etag) is not None
            transfer(
                url,  # which redirects to a store of files, each time by another signed address
                blob,
                num_bytes=found.size,
                headers=headers,
                sha256=found.etag if is_sha256 else None,
            )
        return Path(hf_hub_download(repo, name, revision=commit, cache_dir=cache_dir, **common))


def transfer(
    url: str, target: Path, *, num_bytes: int, headers: Mapping[str, str], sha256: str | None
) -> None:
    """``sha256``: of the whole file, checked where it came in parts. ``url`` is requested for each
    part, so it has to outlast the transfer. Blocks while another process writes the same file.
    Raises huggingface_hub's errors and ``OSError``."""
    partial = partial_of(target)
    while not target.exists():
        with partial.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if target.exists():  # another process finished it meanwhile, and this one is empty
                partial.unlink(missing_ok=True)
                return
            is_of_parts = _continue(url, file, num_bytes, headers)
            try:
                if sha256 is not None and is_of_parts:
                    check_sha256(partial, sha256)
                partial.replace(target)
            except HashMismatchError:
                file.truncate(0)


def _continue(url: str, file: BinaryIO, num_bytes: int, headers: Mapping[str, str]) -> bool:
    """Returns whether it came in parts: some of it existed, or it is larger than a piece."""
    first = done = file.seek(0, 2)
    if done > num_bytes:
        first = done = file.truncate(0)
    while done < num_bytes:
        end = min(num_bytes, done + PIECE_BYTES)
        # http_get reads from ``done`` on, up to this end.
        piece = {"Range": f"bytes=0-{end - 1}"} if num_bytes > PIECE_BYTES else {}
        http_get(url, file, resume_size=done, headers={**headers, **piece}, expected_size=end)
        done = end
    file.flush()
    return first > 0 or num_bytes > PIECE_BYTES
