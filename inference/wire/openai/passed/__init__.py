"""Requests that are passed through to upstreams: audio, images, moderation. The upstream honours or
refuses fields that are not read here. Pure."""
