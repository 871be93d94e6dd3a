"""Registration of the plugin: only fairseq imports the modules in this folder of a ``--user-dir``."""
