"""A model, and a server's view of it."""

from __future__ import annotations

import pytest

from fairseq_lasformer.apps.server.models import ServedModel
from fairseq_lasformer.plugin.model import LasformerModel


@pytest.fixture(scope="module")
def model(trained_folder):
    return LasformerModel.from_pretrained(trained_folder)


@pytest.fixture
def served(model):
    made = ServedModel("mine", model, beam=2)
    yield made
    made.engine.close()
