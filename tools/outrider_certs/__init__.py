"""A certificate authority for a few machines."""
