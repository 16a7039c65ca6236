"""What hosting a model is, for draft and target alike: options, start, the base of a servicer."""
