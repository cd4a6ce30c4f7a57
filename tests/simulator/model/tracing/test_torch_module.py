"""Plain torch modules, traced without weights, equal built-in models and torch's own counts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scaleproof.simulator.common.errors import FieldError, MissingDependencyError, ScenarioError
from scaleproof.simulator.model import Gpt, Layer, ModelSpec, ResNet
from scaleproof.simulator.model.convolutional.image_steps import (
    Block,
    average_pool,
    chain,
    concatenation,
    conv_norm_relu,
    layers_of,
    max_pool,
)
from scaleproof.simulator.model.layers import boundary_elements
from scaleproof.simulator.model.operators import Attention, MemoryBound
from scaleproof.simulator.model.traced import Traced, trace
from scaleproof.simulator.model.tracing import torch_module
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator import torch_models

MODELS = "python:tests.simulator.torch_models"
BUILT_IN: dict[str, ModelSpec] = {"resnet50": ResNet(), "gpt": Gpt(**torch_models.GPT)}

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a user's module to the working folder; returns its name, which is unique."""
    monkeypatch.chdir(tmp_path)

    def written(text: str) -> str:
        name = f"users_{abs(hash((text, str(tmp_path))))}"
        (tmp_path / f"{name}.py").write_text("import torch\nfrom torch import nn\n" + text)
        return name

    return written


def total(layers: list[Layer], which: str) -> float:
    return sum(getattr(layer, which) for layer in layers)


def kept_bytes(layers: list[Layer]) -> int:
    """Bytes kept for one sample in single precision."""
    return sum(kept.elements * (kept.element_bytes or 4) for layer in layers for kept in layer.kept)


def torch_keeps(module: torch.nn.Module, x: torch.Tensor) -> int:
    """Bytes of distinct storages that autograd keeps for `module(x)`, without the module's own."""
    own = [tensor.untyped_storage() for tensor in (*module.parameters(), *module.buffers())]
    found: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        found[id(storage)] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(x)
    del result
    return sum(storage.nbytes() for key, storage in found.items() if key not in map(id, own))


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_model_has_the_same_parameters_and_flops(name: str) -> None:
    traced, built_in = trace(f"{MODELS}:{name}").build_layers(), BUILT_IN[name].build_layers()
    assert [layer.parameters for layer in traced] == [layer.parameters for layer in built_in]
    assert [layer.output_elements for layer in traced] == [layer.output_elements for layer in built_in]
    for which in ("forward_flops", "backward_flops"):
        assert total(traced, which) == pytest.approx(total(built_in, which), rel=0.01)


@pytest.mark.parametrize("name", ["resnet50", "gpt", "scores_gpt", "tied_gpt"])
def test_flops_equal_those_that_torch_counts(name: str) -> None:
    with torch.device("meta"):
        module, x = getattr(torch_models, name)()
        with FlopCounterMode(display=False) as counter:
            output = module(x)
            forward = counter.get_total_flops()
            output.sum().backward()
    layers = trace(f"{MODELS}:{name}").build_layers()
    assert total(layers, "forward_flops") * torch_models.BATCH == pytest.approx(forward)
    assert total(layers, "backward_flops") * torch_models.BATCH == pytest.approx(counter.get_total_flops() - forward)


@pytest.mark.parametrize("name", ["resnet50", "scores_gpt"])
def test_kept_activations_equal_those_of_autograd(name: str) -> None:
    with torch.device("meta"):
        kept = torch_keeps(*getattr(torch_models, name)()) / torch_models.BATCH
    assert kept_bytes(trace(f"{MODELS}:{name}").build_layers()) == pytest.approx(kept, rel=1e-3)


def test_kept_activations_of_the_builtin_resnet_equal_those_of_autograd() -> None:
    with torch.device("meta"):
        kept = torch_keeps(*torch_models.resnet50()) / torch_models.BATCH
    assert kept_bytes(ResNet().build_layers()) == pytest.approx(kept, rel=0.01)


def test_kept_activations_of_parallel_branches_equal_those_of_autograd() -> None:
    block = concatenation(
        conv_norm_relu(16, 1),
        chain(conv_norm_relu(8, 1), conv_norm_relu(16, (1, 3))),
        chain(average_pool(3, 1, 1), conv_norm_relu(4, 1)),
    )
    layers = layers_of([Block("a", "a", chain(block, max_pool(3, 2), conv_norm_relu(8, 3)))], channels=12, side=17)
    with torch.device("meta"):
        kept = torch_keeps(torch_models.Branches(), torch.randn(64, 12, 17, 17)) / 64
    # what the last ReLU wrote is kept by the layer that reads it; of the rest, batch norms' statistics are few
    assert kept_bytes(layers) + 4 * layers[-1].output_elements == pytest.approx(kept, rel=1e-4)


def test_fused_attention_does_not_keep_scores() -> None:
    fused, products = (trace(f"{MODELS}:{name}").build_layers() for name in ("gpt", "scores_gpt"))
    heads, sequence = torch_models.GPT["heads"], torch_models.GPT["sequence"]
    scores, mask = heads * sequence * sequence, sequence * sequence / torch_models.BATCH
    difference = torch_models.GPT["layers"] * (4 * scores + mask - 4 * heads * sequence)
    assert kept_bytes(products) - kept_bytes(fused) == difference, "scores and mask instead of a statistic of each row"
    assert total(products, "forward_flops") == total(fused, "forward_flops")
    [attention] = [operator for operator in fused[1].operators if isinstance(operator, Attention)]
    assert attention == Attention("attention", heads, heads, sequence, sequence, 16, 16, seen=0.5, flash=True)


def test_kernels_decomposed_on_the_meta_device_count_as_one(write: Write) -> None:
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.1)
        self.dropout, self.norm = nn.Dropout(0.1), nn.RMSNorm(64)
    def forward(self, x):
        return self.norm(self.dropout(self.attention(x, x, x, need_weights=False)[0]))
def build(): return nn.Sequential(nn.Linear(64, 64), Net()), torch.randn(2, 16, 64)
"""
    layer = trace(f"python:{write(text)}:build").build_layers()[1]
    [attention] = [operator for operator in layer.operators if isinstance(operator, Attention)]
    assert (attention.heads, attention.queries, attention.width, attention.flash) == (4, 16, 16, True)
    assert [operator.name for operator in layer.operators[-2:]] == ["dropout", "rms_norm"]
    assert [kept.elements for kept in layer.kept if kept.element_bytes == 1] == [16 * 64], "dropout's mask"


def test_a_module_may_switch_autocast_off(write: Write) -> None:
    """Rotary positions of published packages do so for the device of their input; torch has no autocast for the meta device."""
    name = write(
        """
class Exact(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast(device_type=x.device.type, enabled=False):
            return self.linear(x)

def build():
    return Exact(), torch.randn(2, 8)
"""
    )
    before = torch.autocast.__init__
    (layer,) = trace(f"python:{name}:build").build_layers()
    assert layer.parameters == 8 * 4 + 4
    assert torch.autocast.__init__ is before


def test_a_module_without_trained_parameters_is_refused(write: Write) -> None:
    name = write("def frozen(): return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(False), torch.randn(2, 8)")
    with pytest.raises(FieldError, match="nothing can be trained; return what its trained parameters affect"):
        trace(f"python:{name}:frozen")


def test_tied_weights_are_counted_once() -> None:
    free, tied = (trace(f"{MODELS}:{name}").parameters() for name in ("gpt", "tied_gpt"))
    assert free - tied == torch_models.GPT["vocabulary"] * torch_models.GPT["hidden"]


def test_a_value_read_by_a_later_layer_crosses_all_cuts_between() -> None:
    layers = trace(f"{MODELS}:skipping").build_layers()
    assert [layer.inputs for layer in layers] == [None, None, ("parts.0", "parts.1"), None]
    assert boundary_elements(layers)[:3] == [8, 16, 8]


def test_nothing_depends_on_the_batch_of_the_example(write: Write) -> None:
    text = """
def build(batch):
    widened = nn.ConvTranspose2d(8, 4, 2, stride=2, groups=2)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), widened, nn.Flatten(), nn.Linear(4 * 12 * 12, 5))
    return model, torch.randn(batch, 3, 8, 8)
def one(): return build(1)
def eight(): return build(8)
"""
    name = write(text)
    one, eight = (trace(f"python:{name}:{which}").build_layers() for which in ("one", "eight"))
    assert one == eight
    # an output of the transposed convolution for each of 6×6 inputs, kernel elements and channels of a group
    assert one[1].forward_flops == 2 * 36 * 4 * 8 * 4 / 2
    assert [layer.tensors for layer in one] == [(216, 8), (64, 4), (2880, 5)]


def test_weights_are_never_allocated(write: Write) -> None:
    name = write(
        "def build(): return nn.Sequential(*[nn.Linear(100_000, 100_000) for _ in range(20)]), torch.randn(2, 100_000)\n"
    )
    assert trace(f"python:{name}:build").parameters() == 20 * (10**10 + 10**5)


def test_single_modules_and_operators_of_the_root_module_are_traced(write: Write) -> None:
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 7))
        self.layers = nn.ModuleList([nn.Linear(7, 7), nn.Linear(7, 7)])
        self.unused = nn.Linear(3, 3)
    def forward(self, x):
        x = x * 2 + self.start
        for layer in self.layers:
            x = layer(x)
        return x
def one(): return nn.Linear(3, 4), torch.randn(5, 3)
def net(): return Net().to("cpu"), torch.randn(5, 7, device="cpu")
"""
    name = write(text)
    [layer] = trace(f"python:{name}:one").build_layers()
    assert (layer.tensors, layer.forward_flops, layer.pinned_to_end) == ((12, 4), 24, False)
    first, last = trace(f"python:{name}:net").build_layers()
    assert (first.tensors, last.tensors) == ((7, 49, 7), (49, 7, 9, 3))
    assert [operator.name for operator in first.operators] == ["mul", "add", "addmm"]


def test_an_operator_of_unknown_cost_is_rejected(write: Write) -> None:
    name = write("""
class Net(nn.Linear):
    def forward(self, x):
        return torch.linalg.inv(super().forward(x))
def build(): return Net(8, 8), torch.randn(2, 8, 8)
""")
    reference = f"python:{name}:build"
    with pytest.warns(UserWarning, match="no cost is known for aten::linalg_inv_ex; counted by the bytes"):
        counted = trace(reference).build_layers()[0].operators[-1]
    assert isinstance(counted, MemoryBound)
    assert counted.read >= 64
    with pytest.raises(FieldError, match=r"model.source: .*no cost is known for aten::linalg_inv_ex; leave strict out"):
        trace(reference, strict=True)


def test_tables_with_sparse_gradients_are_found_with_their_lookups(write: Write) -> None:
    name = write("""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias, self.bag = nn.Linear(4, 4), nn.EmbeddingBag(1000, 8, sparse=True)
        self.shared, self.tied = nn.Embedding(50, 4, sparse=True), nn.Embedding(9, 4, sparse=True)
        self.gate, self.chosen = nn.Linear(4, 7), nn.Embedding(7, 4, sparse=True)
        self.drawn, self.dense = nn.Embedding(6, 4, sparse=True), nn.Embedding(5, 4)
    def forward(self, x, rows):
        h = self.bias(x) + self.shared(rows[:, 0] % 50) + self.shared(rows[:, 1] % 50) + self.tied(rows[:, 2] % 9)
        h = h + self.chosen(self.gate(h).argmax(-1)) + self.drawn(torch.randint(6, (len(x),))) + self.dense(rows[:, 0] % 5)
        return self.bag(rows).sum(), h @ self.tied.weight.t()
def build(): return Net(), torch.zeros(4, 4), torch.zeros(4, 3, dtype=torch.long)
""")
    layers = trace(f"python:{name}:build").build_layers()
    found = {
        table.name: (layer.tensors[table.tensor], table.looked.width, table.looked.pooling, table.is_foreseen)
        for layer in layers
        for table in layer.row_tables
    }
    # the table whose weights are also a product's has gradients for all rows
    assert found == {
        "bag.weight": (8000, 8, 3, True), "shared.weight": (200, 4, 2, True), "chosen.weight": (28, 4, 1, False),
        "drawn.weight": (24, 4, 1, False),
    }  # fmt: skip


WRONG = {
    "def build(): return nn.Linear(1, 1)": "returns a module alone; return an example of its inputs too, such as",
    "def build(): return 3": "returns a int; return a module and its example inputs",
    "def build(): return nn.Linear(1, 1), [1]": "example input 1 is a list; give tensors",
    "def build(): return nn.Linear(1, 1), torch.tensor(1.0)": "example input 1 has no dimensions; the first dimension",
    "def build(): return nn.Linear(1, 1), torch.zeros(2, 1), torch.zeros(3, 1)": "example input 2 has 3×1; the first dimension",
    "def build(): return nn.Linear(4, 1), torch.zeros(2, 3)": "forward pass on the example inputs raised RuntimeError",
    "def build():\n    raise KeyError('weights')": r"its function raised KeyError: 'weights' \(users_\d+.py:4\)",
    "def build(size): return size": "its function raised TypeError: .*missing 1 required positional argument",
    "def build(): raise SystemExit(3)": r"its function raised SystemExit: 3",
    "def build(): return nn.Linear(1, 1).cuda(), torch.zeros(1)": r"its function needs a GPU: .*\(users_\d+.py:3\); leave",
    "def build(): return nn.Linear(1, 1, device='cuda'), torch.zeros(1)": "its function needs a GPU: requests device cuda",
    "def build(): return nn.Linear(1, 1).to('cuda'), torch.zeros(1)": "its function needs a GPU",
    "def build(): return nn.Linear(torch.cuda.current_device(), 1), torch.zeros(1)": "its function needs a GPU",
    "def build(): return nn.Linear(int(torch.ones(1).item()), 1), 1": r"\(users_\d+.py:3\); while tracing, tensors",
    "def built(): pass": r"module users_\d+ has no function build; did you mean 'built'\?",
    "build = 3": r"module users_\d+ has no function build",
    "def build(:": r"module users_\d+ raised SyntaxError: .* \(users_\d+.py:3\)",
    "import no_such_package": r"module users_\d+ raised ModuleNotFoundError: .*'no_such_package' \(users_\d+.py:3\)",
}


@pytest.mark.parametrize("text", WRONG)
def test_errors_of_a_users_function_are_reported_in_one_line(text: str, write: Write) -> None:
    with pytest.raises(FieldError, match=WRONG[text]) as caught:
        trace(f"python:{write(text)}:build")
    assert str(caught.value).startswith("model.source: python:users_")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reference", ["python:a", "a:b", "python::b", "python:a:"])
def test_malformed_references_are_rejected(reference: str) -> None:
    with pytest.raises(FieldError, match="not of the form python:module:function"):
        trace(reference)


def test_functions_are_called_with_the_arguments_in_the_reference(write: Write) -> None:
    name = write("def build(width=3, act='relu'): return nn.Linear(4, width), torch.zeros(2, 4)")
    assert trace(f"python:{name}:build").parameters() == 15
    assert trace(f"python:{name}:build(width=5, act='gelu')").parameters() == 25
    with pytest.raises(FieldError, match=r"raised TypeError: .* argument 'depth'"):
        trace(f"python:{name}:build(depth=5)")


@pytest.mark.parametrize("called", ["build(5)", "build(width=open('x'))", "build(**{})", "build(width=", "build()(width=5)"])
def test_calls_of_anything_but_literals_by_name_are_rejected(called: str, write: Write) -> None:
    with pytest.raises(FieldError, match="give arguments by name"):
        trace(f"python:{write('def build(width=3): return nn.Linear(4, width), torch.zeros(2, 4)')}:{called}")


def test_missing_modules_are_rejected() -> None:
    with pytest.raises(FieldError, match="there is no module no_such_module in "):
        trace("python:no_such_module.inner:build")


def test_tracing_without_torch_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    torch_module.trace_of.cache_clear()
    with pytest.raises(MissingDependencyError, match="tracing needs it; pip install"):
        trace(f"{MODELS}:gpt")


def test_a_failure_leaves_no_hooks_and_modes_behind(write: Write) -> None:
    with pytest.raises(FieldError):
        trace(f"python:{write('def build(): return nn.Linear(4, 1), torch.zeros(2, 3)')}:build")
    assert torch.zeros(1).device.type == "cpu"
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert str(Path.cwd()) not in sys.path


def test_a_scenario_can_name_a_traced_model(small: Callable[..., Scenario]) -> None:
    scenario = small(f"model={{kind: traced, source: '{MODELS}:gpt'}}", "strategy={kind: pipeline, stages: 3, microbatches: 4}")
    assert isinstance(scenario.model, Traced)
    with pytest.raises(ScenarioError, match=r"model.source: python:missing:build: there is no module missing"):
        small("model={kind: traced, source: 'python:missing:build'}")
