"""A llama-server, as it is, as a draft: the command `outrider draft-llama-server`."""
