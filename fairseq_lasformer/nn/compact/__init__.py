"""Fewer parameters: DeFINE's embedding and the group linear layers of DeLighT."""
