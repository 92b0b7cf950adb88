"""The gateway by itself: what a request costs it, how steady its streams are, what it keeps."""
