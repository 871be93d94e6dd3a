"""Conversion of models in Hugging Face's format to and from ours; one file per family."""
