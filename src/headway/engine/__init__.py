"""From text to tokens and back, and the loop that drives the core in real time."""
