"""Requests that upstreams answer: ``links.py`` has a pool of connections and the places of each
upstream, ``forwarded.py`` one request, ``answer.py`` the bytes of its answer as events."""
