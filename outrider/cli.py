"""The old name of the command, which says what it is called now."""

raise ModuleNotFoundError("outrider.cli is the command `outrider` now; its code: docs/layout.md")
