from __future__ import annotations

import pytest

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model import Gpt, Mlp, cut_into_stages


def test_mlp_layers_have_the_expected_operators() -> None:
    layers = Mlp(layers=3, inputs=4, hidden=5, outputs=2).build_layers()
    assert [layer.tensors for layer in layers] == [(20, 5), (25, 5), (10, 2)]
    assert [layer.output_elements for layer in layers] == [5, 5, 2]
    assert len({layer.signature for layer in layers}) == 3


def test_more_stages_than_layers_are_rejected() -> None:
    layers = Gpt(layers=6, hidden=4, heads=1, vocabulary=4, sequence=4).build_layers()
    with pytest.raises(FieldError, match="9 stages for 6 layers; give at most 6"):
        cut_into_stages(layers, 9)
