"""Translation memories: pairs of sentences that somebody translated, found again by their words."""
