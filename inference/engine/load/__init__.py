"""Turns a load spec into an engine that answers: trial steps, memory, context, quality, warm-up."""
