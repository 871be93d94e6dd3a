"""Translation of documents: batches, parts, contexts, streaming, word alignment, the Python interface."""
