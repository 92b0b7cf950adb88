"""Requests that are passed through to upstreams: audio, images, moderation. ``request.py`` and
``form.py`` read what the gateway needs of a body, ``units.py`` what an answer used. All other
fields are the upstream's to honour or to refuse. Pure.
"""
