"""A client of the Model Context Protocol, revision 2025-06-18: tools alone, over stdio and HTTP.

https://modelcontextprotocol.io/specification/2025-06-18
"""
