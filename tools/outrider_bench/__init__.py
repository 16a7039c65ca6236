"""Measures pairs of models on this machine, every variant in turn with the target alone."""
