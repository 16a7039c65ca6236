"""Drafts with a llama-server that somebody runs, over its HTTP API; no model is in this process."""
