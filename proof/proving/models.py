"""Random small models of every kind that can be trained in a lab."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, Literal

Compute = Literal["paced", "real"]
# Largest number of stages: with more, messages of a step keep this machine's cores busy.
MOST_STAGES: Final = 8
Drawn = Callable[[Random, int], dict[str, Any]]


def drawn_model(random: Random, hosts: int, seen: Counter[str]) -> tuple[str, dict[str, Any]]:
    """A model whose layers suit a number of hosts, and the name of its family. seen: numbers of earlier draws by family."""
    name = rarer(random, sorted(_MODELS), seen)
    return name, _MODELS[name](random, hosts)


def rarer(random: Random, names: Sequence[str], seen: Counter[str]) -> str:
    """One of the names; those that were drawn less often are more probable."""
    return random.choices(names, [1 / (1 + seen[name]) ** 2 for name in names])[0]


def _blocks(hosts: int) -> int:
    """Two for each host, so that each can have two stages; few where all of the lab's hosts train."""
    return 2 * hosts if hosts <= MOST_STAGES else 4


def _width(random: Random, hosts: int) -> int:
    """Small where many ranks share this machine's cores, which move all of their gradients."""
    return random.choice((64, 96, 128) if hosts <= MOST_STAGES else (48, 64))


def _common(random: Random, hosts: int) -> dict[str, Any]:
    """Fields that transformers have in common."""
    layers, hidden = max(_blocks(hosts), random.choice((4, 6))), _width(random, hosts)
    sizes = {"vocabulary": random.choice((128, 256)), "sequence": random.choice((128, 256))}
    return {"layers": layers, "hidden": hidden, "heads": 4} | sizes


def _gpt(random: Random, hosts: int) -> dict[str, Any]:
    variant: dict[str, Any] = random.choice(
        (
            {},
            {},
            {"parallel": True, "biases": "none"},
            {"key_heads": 1, "biases": "qkv"},
            {"window": 64, "head_norms": True},
            {"activation": "geglu", "norm": "rms", "positions": "rotary"},
            {"tied": True},
        )
    )
    return {"kind": "gpt"} | _common(random, hosts) | variant


def _llama(random: Random, hosts: int) -> dict[str, Any]:
    """Rotary positions and gated MLPs, with fewer heads of keys than of queries."""
    model = {"kind": "llama", "key_heads": random.choice((2, 4))} | _common(random, hosts)
    return model | {"feedforward": 2 * model["hidden"]}


def _mixture(random: Random, hosts: int) -> dict[str, Any]:
    """Experts, half of the time with a capacity beyond which tokens are dropped."""
    experts: dict[str, Any] = {"count": 4, "active": random.choice((1, 2)), "feedforward": random.choice((64, 128))}
    experts |= random.choice(({}, {"capacity": 1.25}, {"capacity": 2.0, "shared": 1}))
    return (_llama if random.random() < 0.5 else _gpt_alone)(random, hosts) | {"experts": experts}


def _gpt_alone(random: Random, hosts: int) -> dict[str, Any]:
    return {"kind": "gpt"} | _common(random, hosts)


def _bert(random: Random, hosts: int) -> dict[str, Any]:
    model = {"kind": "bert"} | _common(random, hosts)
    return model | {"dropout": False, "position_rows": model["sequence"], "pretraining": random.random() < 0.3}


def _t5(random: Random, hosts: int) -> dict[str, Any]:
    """Encoder and decoder, of which each has as many layers as there are hosts."""
    model = {"kind": "t5"} | _common(random, hosts)
    sizes = {"layers": max(2, _blocks(hosts) // 2), "head_width": model["hidden"] // 4, "feedforward": 4 * model["hidden"]}
    return model | sizes | {"target_sequence": model["sequence"] // 2, "dropout": False, "tied": random.random() < 0.5}


def _mlp(random: Random, hosts: int) -> dict[str, Any]:
    hidden = random.choice((128, 192, 256)) if hosts <= MOST_STAGES else 256
    return {"kind": "mlp", "inputs": 128, "hidden": hidden, "layers": _blocks(hosts), "outputs": 64}


def _siamese(random: Random, hosts: int) -> dict[str, Any]:
    """Two towers, whose layers form a graph with branches."""
    return {"kind": "siamese", "tower": _mlp(random, hosts)}


_TRANSFORMERS: Final[Mapping[str, Drawn]] = {"gpt": _gpt, "llama": _llama, "mixture": _mixture, "bert": _bert, "t5": _t5}
_LINEAR: Final[Mapping[str, Drawn]] = {"mlp": _mlp, "siamese": _siamese}
_MODELS: Final[Mapping[str, Drawn]] = {**_TRANSFORMERS, **_LINEAR}
