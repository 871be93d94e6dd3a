"""The manifest of a split."""

from __future__ import annotations

import json

import pytest

from fairseq_lasformer.base.errors import InputError


def test_manifest_damage_is_told(tmp_path):
    from fairseq_lasformer.data.manifest import SplitInfo

    endless = {"examples": [], "longest": [1e999, 1], "documents": 1}
    short = {"examples": [], "longest": [1, 1], "documents": 1, "unknown": []}
    for text in (json.dumps({"documents": 1}), json.dumps(endless), json.dumps(short), "[" * 100_000):
        (tmp_path / "documents.test.json").write_text(text)
        with pytest.raises(InputError, match="documents.test.json"):
            SplitInfo.load(tmp_path, "test")
