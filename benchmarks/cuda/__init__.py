"""The rows of scripts/bench that need a card."""
