"""Ways to train: in CUDA graphs, with a teacher, for 8 bits, from a dense model."""
