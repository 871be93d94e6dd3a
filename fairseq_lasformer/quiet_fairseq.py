"""fairseq, imported with logging left as it is: its tasks for speech configure the root logger when they are imported.

Packages whose modules need fairseq import this module first. It also makes threads wait briefly (``threads``), which is
possible only before torch is loaded.
"""

import logging

from fairseq_lasformer.threads import wait_briefly

wait_briefly()
_root = logging.getLogger()
_level, _handlers = _root.level, _root.handlers[:]
try:
    import fairseq  # noqa: F401
finally:
    _root.setLevel(_level)
    _root.handlers[:] = _handlers
