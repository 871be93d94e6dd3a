"""Raw text: lines, documents, terms and hypotheses; used by memories, formats and data. It needs no torch."""
