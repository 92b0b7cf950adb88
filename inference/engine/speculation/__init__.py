"""Drafts: tokens that are guessed cheaply and verified by the model, several in one step. A guess
decides how many tokens come out of a step, never which. Only ``draft_runner`` imports torch."""
