"""Headway beside other engines: their environments, their files, the processes, the rounds and the tables."""
