"""Text in, examples out; documents can be read without torch."""
