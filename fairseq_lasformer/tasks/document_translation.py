"""Registration of the plugin, imported only through fairseq's ``--user-dir``."""

from fairseq_lasformer.plugin import is_fairseqs_tool, register
from fairseq_lasformer.plugin.patches import compat

register()
if is_fairseqs_tool():
    compat.errors_in_one_line()
