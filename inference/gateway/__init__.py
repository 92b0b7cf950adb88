"""Channels consumers, the event reader and dispatch to neurons."""
