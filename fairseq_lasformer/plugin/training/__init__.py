"""Ways to train: with a teacher, from a dense model."""
