"""Requests that upstreams answer: ``links.py`` has a pool of connections and the places of each
upstream, ``forwarded.py`` one request and its answer as events."""
