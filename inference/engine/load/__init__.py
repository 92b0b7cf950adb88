"""From a load spec to an engine that answers: trial steps, memory, context, quality, warm-up."""
