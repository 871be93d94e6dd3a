"""Translated documents on disk."""

from __future__ import annotations

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.text.hypotheses import read_hypotheses, write_hypotheses


def test_hypotheses_are_read_in_both_forms(tmp_path):
    documents = [["a b", "c"], ["d"], ["e", "f", "g"]]
    for form in ("lines", "raw"):
        write_hypotheses(tmp_path / form, documents, form)
        assert read_hypotheses(tmp_path / form, n_documents=3) == documents
    assert (tmp_path / "lines").read_text() == "a b\tc\nd\ne\tf\tg\n"
    assert (tmp_path / "raw").read_text() == "a b\nc\n\nd\n\ne\nf\ng\n"
    (tmp_path / "one").write_text("a\nb\n")
    assert read_hypotheses(tmp_path / "one", n_documents=1) == [["a", "b"]]
    with pytest.raises(InputError, match="no hypothesis for document.s. 3.*as many documents as the reference"):
        read_hypotheses(tmp_path / "raw", n_documents=5)
