"""Benchmarks: every number in the documents has a command here that prints it."""
