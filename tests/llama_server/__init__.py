"""Runs llama.cpp's tests of its server against Outrider; `python -m tests.llama_server.run`."""
