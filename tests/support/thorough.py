"""Whether tests try everything: `OUTRIDER_TEST_THOROUGH=1 make test`.

Without it they have ten minutes, with fewer prompts, seeds and lengths of the same kinds.
"""

from __future__ import annotations

import os

THOROUGH = bool(os.environ.get("OUTRIDER_TEST_THOROUGH"))
