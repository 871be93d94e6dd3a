"""fairseq, and nothing else, imports the modules in this folder of a ``--user-dir``: the plugin is registered here."""
