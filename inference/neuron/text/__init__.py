"""A request as token ids for its engine, and the engine's token ids as events for its client."""
