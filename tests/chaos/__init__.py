"""The fault matrix: everything that can be lost, at every service, in the middle of everything.

make chaos                     every cell, in an order that SEED gives; rewrites tests/faults.md
make chaos MINUTES=10          as many as that
make chaos ONLY=kill,target    those whose names have all of these words, in the same order
"""
