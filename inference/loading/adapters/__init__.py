"""An adapter's files, checked against its base model."""
