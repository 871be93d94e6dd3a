"""A translation server: the queue of documents (:mod:`engine`), and its HTTP interface (:mod:`app`)."""
