"""The CPU decoder in C++: compiled on this machine at first use, called through ctypes. Without a
C++ compiler the torch path runs instead; the load report names the path."""
