"""Random inputs to whatever reads what others send or wrote, with those kept that once mattered.

    python -m tests.fuzz.run --minutes 10

A *subject* is something that reads: the services' methods, the readers of what peers answer, the
gateway's routes, GGUF headers, lookup caches. `corpus/` holds inputs of each, by hand or found, a
file each. `test_fuzz.py` reads all of them, and some that are changed at random.
"""
