"""Converts between text and token ids: chat templates, detokenizer, stop strings, thinking, tool
calls and grammars. No torch, no Django."""
