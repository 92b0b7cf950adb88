"""Images on torch's operators: from patches to rows of a decoder."""
