"""Sources of draft tokens without a model, and what they keep."""
