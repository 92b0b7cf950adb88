"""One Redis URL for everybody: redis-py and Celery spell a unix socket differently."""

from __future__ import annotations


def celery_broker_url(redis_url: str) -> str:
    """``unix://…`` (redis-py) becomes ``redis+socket://…`` (kombu); others are the same in both.

    The database number is ``?db=0`` in the first and ``?virtual_host=0`` in the second.
    """
    if not redis_url.startswith("unix://"):
        return redis_url
    return "redis+socket://" + redis_url.removeprefix("unix://").replace("db=", "virtual_host=")
