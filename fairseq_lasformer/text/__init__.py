"""Raw text: lines, documents, terms and hypotheses. Memories, formats and data stand on it; it needs no torch."""
