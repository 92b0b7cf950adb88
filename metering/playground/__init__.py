"""The playground: a page for members that speaks the public API by its reader's login."""
