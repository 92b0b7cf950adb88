"""Child processes of one serve: started, logged, restarted, and ended however serve itself ends."""
