"""Mistakes that the tests are to notice: `make mutations`."""
