"""Chats: templates and their sandbox, tool calls written and required."""
