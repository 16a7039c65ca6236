"""The orchestrator over HTTP: OpenAI's API, llama-server's own, metrics and a page."""
