"""Applications of the core, which knows nothing of them: one for each thing that people do with a model."""
