"""Models by their names on Hugging Face: which file is meant, and where it is kept."""
