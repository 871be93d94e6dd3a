"""Alignment of files in two languages: from two folders to a parallel corpus of documents."""
