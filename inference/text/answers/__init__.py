"""An answer's text taken apart: thinking, text, tool calls, and where it stops."""
