"""HTTP: an OpenAI-compatible front door."""
