"""Long work in several processes: the translation of a prepared split."""
