"""Runs the command as `python -m outrider.cli`."""

from outrider.cli import main

if __name__ == "__main__":
    main()
