"""Hugging Face as a place to choose models from: what a repository holds, and where it would fit.

    HubClient ──HubRepository──▶ offers_of ──Offer──▶ fits ──▶ a page, a command

The client asks the hub; the rest is pure. No torch: architectures are judged by the files that say
what they are. Import the client where it is used: huggingface_hub takes its time.
"""
