"""Chat templates, incremental detokenizer and stop strings. No torch, no Django."""
