"""The old name of two folders, which says what they are called now."""

import sys

sys.exit("bench is now benchmarks/ (measurements) and models/ (synthetic pairs): docs/layout.md")
