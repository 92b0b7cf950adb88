"""Neurons and their hosts: heartbeats, operators' decisions, and invitations."""
