"""Decisions: which request gets how many tokens in the next step, and where its memory is.

Standard library only; no clock, no randomness, no I/O, no threads. Start reading at ``engine_core.py``.
"""
