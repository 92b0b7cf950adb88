"""From an engine's token ids to the events of an answer."""
