"""Conversion of text to examples and back; documents can be read without torch."""
