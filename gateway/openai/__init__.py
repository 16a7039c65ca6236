"""OpenAI's API: completions, chat, responses, embeddings."""
