"""Runs one model for many sessions on one thread."""
