"""Choosing models from Hugging Face: a repository's contents, and the hosts where they fit.

    HubClient ──HubRepository──▶ offers_of ──Offer──▶ fits ──▶ a page, a command

Only the client queries the hub; the rest is pure. No torch: architectures are judged by the config
files. Import the client where it is used: huggingface_hub is slow to import.
"""
