"""A decoder whose weights several ranks share: each rank's part, and their collectives."""
