"""Grammars that a text has to follow: reads them, makes them of JSON schemas, follows texts."""
