"""What each family of decoders declares about itself. Imports no torch: preflight, placement and
the hub's pages read these declarations on machines that have none."""
