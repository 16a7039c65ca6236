"""A pytest plugin for llama.cpp's tests: their session does not begin with loading every model."""

from __future__ import annotations

import utils  # of llama.cpp's tests

utils.ServerPreset.load_all = staticmethod(lambda: None)
