"""fairseq imports the modules in this folder of a ``--user-dir``, and it alone does: here the plugin is registered."""
