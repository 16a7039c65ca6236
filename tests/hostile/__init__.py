"""Hostile clients, drafts and targets against real processes: `make hostile`."""
