"""Requests that are passed through to upstreams: audio, images, moderation. Fields that are not
read here are the upstream's to honour or to refuse. Pure.
"""
