"""Models in Hugging Face's format as models of ours; a file for each family."""
