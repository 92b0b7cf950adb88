"""scripts/first-hour-on-a-card: everything that needs a card, in parts of at most eight minutes.

parts ─▶ command runs each in a process of its own ─▶ state.json, logs ─▶ table
"""
