"""The old name of two folders, which says what they are called now."""

raise ModuleNotFoundError(
    "bench is now benchmarks/ (measurements) and models/ (synthetic pairs): docs/layout.md",
    name="bench",
)
