"""Translation of files in their formats, and of folders."""
