"""The address that a running serve's Redis was opened at from the page: ``redis/share.json`` of the
data directory, which the next serve without ``--share`` opens again. Standard library only."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

from helexa_site.bootstrap.arguments import ServeOptions
from helexa_site.bootstrap.console import print_step
from helexa_site.bootstrap.private_redis.sharing import Share
from helexa_site.bootstrap.serving.ports import try_to_listen
from helexa_site.whole_file import write_whole

SHARE_FILE = "share.json"


def keep_share(redis_dir: Path, share: Share) -> None:
    """Raises ``OSError``."""
    write_whole(redis_dir / SHARE_FILE, json.dumps({"host": share.host, "port": share.port}))


def forget_share(redis_dir: Path) -> None:
    """Raises ``OSError``."""
    (redis_dir / SHARE_FILE).unlink(missing_ok=True)


def find_share(redis_dir: Path) -> Share | None:
    """``None``: the page has opened none, or what stands there is no address."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads((redis_dir / SHARE_FILE).read_text())
        return Share(host=str(found["host"]), port=int(found["port"]))
    return None


def with_kept_share(options: ServeOptions, redis_dir: Path) -> ServeOptions:
    """``--share`` goes before it. An address that cannot be listened on now is left out, with a
    line on the terminal: the rest of serve does not need it."""
    share = find_share(redis_dir) if options.share is None else None
    if share is None:
        return options
    if error := try_to_listen(share.host, share.port):
        reason = error.strerror or str(error)
        print_step("share", f"not at {share.address}, as the page has it: {reason}")
        return options
    return replace(options, share=share)
