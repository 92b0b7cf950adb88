"""The playground: a page for members that speaks the public API with a key of their own."""
