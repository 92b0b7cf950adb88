"""People and their passwords: one's own, and the first one by the link of an invitation."""
