"""Measuring: engines in this process, and any OpenAI-compatible server under open-loop load."""
