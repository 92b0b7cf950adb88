"""Neurons and their hosts: heartbeats, what operators decide of them, and invitations."""
