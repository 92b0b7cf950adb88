"""Responses that clients asked to keep: stored whole, built upon, forgotten after a time."""
