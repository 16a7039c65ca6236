"""Hosts the draft model: keeps a line of guesses per session."""
