"""Error of unusable input, by its public name: scripts that read files with this package catch it."""

from fairseq_lasformer.base.errors import InputError as InputError
