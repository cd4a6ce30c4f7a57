"""Models with branches: what crosses a cut, and which layers can run at the same time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model import T5, Gpt, Layer, Mlp, ResNet, Siamese
from scaleproof.simulator.model.graph import branches, graph_of, place_branches
from scaleproof.simulator.model.layers import Shard, boundary_elements
from scaleproof.simulator.model.operators import Matmul

TOWER = Mlp(layers=3, inputs=4, hidden=5, outputs=2)


def layer(name: str, *inputs: str, width: int = 1) -> Layer:
    return Layer(name, name, (Matmul(name, 1, width, 1),), (), output_elements=width, inputs=inputs)


def names(found: list[list[list[Layer]]]) -> list[list[list[str]]]:
    return [[[member.name for member in branch] for branch in fork] for fork in found]


@pytest.mark.parametrize("tower", [TOWER, ResNet()], ids=lambda tower: tower.kind)
def test_the_towers_of_a_siamese_network_share_their_weights(tower: Mlp | ResNet) -> None:
    alone = tower.build_layers()
    layers = Siamese(tower=tower).build_layers()
    embedding = alone[-1].output_elements
    assert sum(part.parameters for part in layers) == tower.parameters() + embedding + 1
    assert sum(part.forward_flops for part in layers) == 2 * sum(part.forward_flops for part in alone) + 2 * embedding
    [[left, right]] = branches(layers)
    assert [part.signature for part in left] == [part.signature for part in right]
    assert len(left) == len(alone)
    assert [part for part in layers if part not in left + right] == [layers[-1]], "the head joins them"


def test_towers_run_on_different_devices_and_send_only_embeddings() -> None:
    layers = Siamese(tower=TOWER).build_layers()
    assert place_branches(layers, 2) == [0, 0, 0, 1, 1, 1, 0]
    assert place_branches(layers, 1) == [0] * 7
    assert boundary_elements(layers) == [5, 5, 2, 2 + 5, 2 + 5, 2 + 2, 0]


def test_siamese_networks_reject_tensor_parallelism() -> None:
    with pytest.raises(FieldError, match="a siamese cannot be divided"):
        Siamese(tower=TOWER).build_layers(Shard(tensor=2))


def test_a_chain_has_no_branches_and_sends_its_outputs() -> None:
    layers = Gpt(layers=3, hidden=4, heads=1, vocabulary=7, sequence=2).build_layers()
    assert branches(layers) == []
    assert place_branches(layers, 4) == [0] * len(layers)
    assert boundary_elements(layers)[:-1] == [part.output_elements for part in layers[:-1]]


def test_the_encoder_output_is_read_by_all_decoder_layers_and_sent_once() -> None:
    layers = T5(layers=2, hidden=4, heads=1, feedforward=8, vocabulary=7, sequence=6, target_sequence=3).build_layers()
    encoded = max(index for index, part in enumerate(layers) if part.name.startswith("encoder"))
    decoder = next(index for index, part in enumerate(layers) if part.name == "decoder1")
    assert encoded < decoder
    assert boundary_elements(layers)[decoder - 1] == 6 * 4 + 3 * 4, "the encoder's output and the first decoder layer's"


def test_each_fork_has_its_own_branches() -> None:
    layers = [
        layer("a"),
        layer("b", "a"),
        layer("c", "a"),
        layer("d", "b", "c"),
        layer("e", "d"),
        layer("f", "d"),
        layer("g", "e", "f"),
    ]
    assert names(branches(layers)) == [[["b"], ["c"]], [["e"], ["f"]]]
    assert place_branches(layers, 2) == [0, 0, 1, 0, 0, 1, 0]


def test_shortcuts_do_not_count_as_branches() -> None:
    layers = [layer("a", width=7), layer("b", "a"), layer("c", "b", "a")]
    assert branches(layers) == []
    assert boundary_elements(layers)[1] == 1 + 7


def test_paths_that_exchange_data_do_not_count_as_branches() -> None:
    layers = [layer("a"), layer("b", "a"), layer("c", "a"), layer("d", "b"), layer("e", "c", "b"), layer("f", "d", "e")]
    assert branches(layers) == []


def test_the_heaviest_branch_gets_its_own_device() -> None:
    widths = {"b": 1, "c": 10, "d": 2}
    layers = [layer("a"), *(layer(name, "a", width=width) for name, width in widths.items()), layer("e", *widths)]
    assert place_branches(layers, 2) == [0, 1, 0, 1, 0]


@given(towers=st.lists(st.integers(1, 4), min_size=2, max_size=5), spare=st.integers(0, 2))
def test_independent_branches_get_separate_devices_if_there_are_enough(towers: list[int], spare: int) -> None:
    layers, ends = [], []
    for number, depth in enumerate(towers):
        layers += [layer(f"{number}.{i}", *([f"{number}.{i - 1}"] if i else [])) for i in range(depth)]
        ends.append(layers[-1].name)
    layers.append(layer("join", *ends))
    devices = dict(zip((part.name for part in layers), place_branches(layers, len(towers) + spare), strict=True))
    used = [{devices[f"{number}.{i}"] for i in range(depth)} for number, depth in enumerate(towers)]
    assert all(len(own) == 1 for own in used)
    assert len(set.union(*used)) == len(towers)


def test_edges_have_the_bytes_that_are_sent() -> None:
    graph = graph_of(Siamese(tower=TOWER).build_layers())
    assert set(graph.predecessors("head")) == {"left.linear2", "right.linear2"}
    assert graph.edges["left.linear2", "head"]["elements"] == 2
    assert not list(graph.predecessors("right.linear0"))
