"""The CPU decoder in C++: compiled on this machine at first use, called through ctypes.

    cpp/         the source: library.cpp includes all of it
    library.py   finds a compiler, compiles once per source and CPU, keeps the library on disk;
                 reads the structs that both sides share from the headers
    packing.py   weights into the panels that formats.h documents
    decoder.py   one call per forward pass

Without a C++ compiler the torch path runs instead; the load report names the path.
"""
