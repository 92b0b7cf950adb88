"""``python -m inference.engine --fd N``: see ``inference.engine.process``."""

import sys

from inference.garbage import uncollected

with uncollected():
    from inference.engine.process import main

sys.exit(main())
