"""One file for each endpoint of text: body in, one response out."""
