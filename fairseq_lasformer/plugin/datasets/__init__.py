"""Data sets of examples that change while they are read: noise, other subwords, dropped words, long examples."""
