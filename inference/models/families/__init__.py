"""Declarations of the families of decoders. Readers raise ``BadFileError`` for what would be
computed wrongly. Imports no torch: preflight, placement and the hub's pages read these declarations
on machines that have none."""
