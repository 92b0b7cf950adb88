"""The CPU decoder in C++: compiled on this machine at first use, called through ctypes.

    cpp/         the source: library.cpp includes all of it
    build.py     finds a compiler, compiles once per source and CPU, keeps the library on disk
    packing.py   weights into the panels that formats.h documents
    headers.py   the structs that both sides share, read from the headers
    decoder.py   one call per forward pass

Without a C++ compiler the torch path runs instead; the load report names the path.
"""
