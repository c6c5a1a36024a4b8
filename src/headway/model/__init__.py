"""Checkpoint formats, the model catalogue, and the decoder written once in terms of ops."""
