"""Hosts the target model: verifies drafts in one decode."""
