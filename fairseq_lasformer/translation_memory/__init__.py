"""Translation memories: translated pairs of sentences, found again by their words."""
