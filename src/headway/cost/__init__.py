"""Seconds, bytes and money as functions."""
