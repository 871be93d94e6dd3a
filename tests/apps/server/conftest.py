"""A model, and a server's view of it."""

from __future__ import annotations

import pytest

from fairseq_lasformer.apps.server.models import ServedModel
from fairseq_lasformer.plugin.model import LasformerModel


@pytest.fixture(scope="module")
def model(by_lines_folder):
    return LasformerModel.from_pretrained(by_lines_folder)


@pytest.fixture
def served(model):
    made = ServedModel("mine", model, beam=2)
    yield made
    made.engine.close()
