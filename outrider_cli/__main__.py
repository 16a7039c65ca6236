"""Runs the command as `python -m outrider_cli`."""

from outrider_cli import main

if __name__ == "__main__":
    main()
