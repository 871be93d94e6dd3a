"""Functions of fairseq that are replaced when the plugin is registered, a module for each reason."""
