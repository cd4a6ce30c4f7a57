"""Torch modules of the simulator's models: one per simulator layer, in the same order, with the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from scaleproof.simulator.model import (
    T5,
    AlexNet,
    Bert,
    Dlrm,
    Gpt,
    Hstu,
    InceptionV3,
    Llama,
    Mlp,
    ModelSpec,
    RecurrentNetwork,
    ResNet,
    Siamese,
    Traced,
    Vgg,
)
from scaleproof.simulator.model.fine_tuning import FineTuning
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.validator.train.models import (
    convolutional,
    encoders,
    hstu,
    recommender,
    recurrent,
    resnet,
    siamese,
    transformer,
)
from scaleproof.validator.train.models.fine_tuning import freeze
from scaleproof.validator.train.models.transformer import cross_entropy
from scaleproof.validator.train.models.wiring import Tie, Wiring, wiring_of

# Data types of parameters and gradients by training precision. Products in fewer bits are emulated, not computed.
DTYPES: Final = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
    "fp8": torch.bfloat16, "fp4": torch.bfloat16,
}  # fmt: skip


class Family(NamedTuple):
    """How a kind of model is trained. layer: builds the layer with a number. loss: mean over samples of a model's outputs and
    targets. ties: weights that layers share. wiring: what layers read, where it is not what the simulator's layers say."""

    layer: Callable[[Any, int], nn.Module]
    loss: Callable[[Any, Tensor], Tensor] = cross_entropy
    ties: Callable[[Any], Sequence[Tie]] = lambda spec: ()
    wiring: Callable[[Any], Wiring] = lambda spec: wiring_of(spec.build_layers())


def build(model: ModelSpec, numbers: Iterable[int], seed: int, tuning: FineTuning | None = None) -> list[nn.Module]:
    """The layers of `model` with the given numbers, as in `model.build_layers()`.

    A layer's initial parameters depend only on the seed and its number, so that all ranks build equal ones. They are fp32 on
    the CPU. Layers that share weights have the same parameters; those of a layer that is not built are a copy.
    tuning: what is trained of them; all if None.
    """
    layers = model.build_layers() if tuning is not None else ()

    def seeded(number: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            # so that no two runs with small seeds share a layer
            torch.manual_seed(seed * 1_000_003 + number)
            module = family_of(model).layer(model, number)
            if tuning is not None:
                freeze(module, layers, number, tuning)
            return module

    modules = {number: seeded(number) for number in numbers}
    tie(modules, family_of(model).ties(model), seeded)
    return list(modules.values())


def tie(modules: Mapping[int, nn.Module], ties: Sequence[Tie], build_owner: Callable[[int], nn.Module]) -> None:
    """Replaces parameters of modules by those of their owners. build_owner: builds the layer of an owner that is not there."""
    owners = dict(modules)
    for shared in ties:
        if shared.layer in modules:
            if shared.owner not in owners:
                owners[shared.owner] = build_owner(shared.owner)
            owner = owners[shared.owner]
            path, _, name = shared.name.rpartition(".")
            setattr(modules[shared.layer].get_submodule(path), name, owner.get_parameter(shared.owner_name))


def tie_within(modules: Mapping[int, nn.Module], ties: Sequence[Tie]) -> None:
    """Makes copies of a weight in several of the modules the same parameter, that of the first one."""
    first: dict[tuple[int, str], tuple[int, str]] = {}
    within = []
    for shared in ties:
        owner = (shared.owner, shared.owner_name)
        if shared.layer in modules:
            number, name = first.setdefault(owner, owner if shared.owner in modules else (shared.layer, shared.name))
            within.append(Tie(shared.layer, shared.name, number, name))
    tie(modules, within, modules.__getitem__)


def family_of(model: ModelSpec) -> Family:
    """How `model` is trained."""
    return next(family for spec, family in FAMILIES.items() if isinstance(model, spec))


def _mlp_layer(spec: Mlp, index: int) -> nn.Module:
    widths = spec.widths()
    linear = nn.Linear(widths[index], widths[index + 1])
    return linear if index == spec.layers - 1 else nn.Sequential(linear, nn.ReLU())


def _transformer_ties(spec: Transformer) -> Sequence[Tie]:
    return [Tie(spec.layers + 1, "output.weight", 0, "token.weight")] if spec.tied else []


def _recurrent_ties(spec: RecurrentNetwork) -> Sequence[Tie]:
    return [Tie(spec.layers + 1, "weight", 0, "weight")] if spec.tied else []


def _siamese_layer(spec: Siamese, index: int) -> nn.Module:
    return siamese.layer(spec, index, lambda number: family_of(spec.tower).layer(spec.tower, number))


def _siamese_ties(spec: Siamese) -> Sequence[Tie]:
    def parameters(number: int) -> Sequence[str]:
        with torch.device("meta"):
            return [name for name, _ in family_of(spec.tower).layer(spec.tower, number).named_parameters()]

    return siamese.ties(spec, parameters)


def _undivided(spec: Traced, index: int) -> nn.Module:
    raise NotImplementedError("users' modules are built as a whole, see traced.py")


_DECODER: Final = Family(transformer.layer, ties=_transformer_ties)
FAMILIES: Final[Mapping[type[ModelSpec], Family]] = {
    Gpt: _DECODER,
    Llama: _DECODER,
    Bert: Family(encoders.bert_layer, encoders.bert_loss, encoders.bert_ties),
    T5: Family(encoders.t5_layer, ties=encoders.t5_ties, wiring=encoders.t5_wiring),
    Mlp: Family(_mlp_layer),
    RecurrentNetwork: Family(recurrent.layer, ties=_recurrent_ties),
    ResNet: Family(resnet.layer),
    Vgg: Family(convolutional.vgg_layer),
    AlexNet: Family(convolutional.alexnet_layer),
    InceptionV3: Family(convolutional.inception_layer, convolutional.inception_loss, wiring=convolutional.inception_wiring),
    # the module computes its loss
    Traced: Family(_undivided, lambda outputs, targets: outputs),
    Siamese: Family(_siamese_layer, siamese.loss, _siamese_ties),
    Dlrm: Family(recommender.layer, recommender.loss, wiring=recommender.wiring),
    Hstu: Family(hstu.layer, hstu.loss, wiring=hstu.wiring),
}
