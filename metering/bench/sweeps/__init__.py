"""A sweep: its settings, its plan, its scenarios and prompts, and the samples that it takes."""
