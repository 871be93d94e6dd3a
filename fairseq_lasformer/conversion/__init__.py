"""Models from elsewhere, as models of this package."""
