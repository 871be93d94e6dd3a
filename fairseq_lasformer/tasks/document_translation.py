"""Imported only through fairseq's ``--user-dir``: registers the plugin."""

from fairseq_lasformer.plugin import compat, is_fairseqs_tool, register

register()
if is_fairseqs_tool():
    compat.errors_in_one_line()
