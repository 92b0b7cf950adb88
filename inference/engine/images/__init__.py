"""Images of prompts: where their tokens are, what each token is rotated by, and their rows."""
