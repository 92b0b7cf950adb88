"""Which files one streamed chat passes from socket to engine and back."""
