"""Foundations of all rooms: errors, files, resumption, options, the terminal, and this machine."""
