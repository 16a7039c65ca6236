"""Teaches a head that drafts for a model: `outrider teach`."""
