"""``python -m inference.engine --fd N``: see ``inference.engine.serving.process``."""

import sys

from inference.garbage import uncollected

with uncollected():
    from inference.engine.serving.process import main

sys.exit(main())
