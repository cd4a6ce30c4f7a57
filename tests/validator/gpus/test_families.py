"""Every way to train, on GPUs that do not exist.

Theory: collectives and messages complete where NCCL's communicators run them in the order in which ranks launch them, with
communicators that are created by their first use, and with those created with their groups. Except for the time that they take,
ranks go through the phases that they go through on CPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.record.recorder import Recorder
from tests.validator.conftest import TINY_GPT
from tests.validator.gpus.fake_nccl import LoggedGroup
from tests.validator.gpus.families import ALWAYS_IN_BULK, FAMILIES, QUICK, Family
from tests.validator.gpus.player import Job, Phases, phases_on_gloo, play
from tests.validator.gpus.replay import faults
from tests.validator.verdicts import at_night, in_bulk

# Number of the stream of computation.
_COMPUTATION = 0
# Where groups sum what each has scattered, a pass on CPUs is interrupted once more for each layer. On GPUs another stream waits
# for these sums; that of computation waits for all of them together at the end of a backward pass.
_SUMMED_IN_A_STREAM = {"fsdp of groups": {(Stream.MAIN, phase) for phase in (Phase.BACKWARD, Phase.SYNCHRONISE)}}

OTHERS = [name for name in FAMILIES if name not in (*QUICK, *ALWAYS_IN_BULK)]


@pytest.mark.parametrize("name", [*QUICK, *in_bulk(*ALWAYS_IN_BULK, *OTHERS[::2]), *at_night(*OTHERS[1::2])])
def test_ranks_train_on_gpus_as_on_cpus(name: str, tmp_path: Path) -> None:
    scenario = FAMILIES[name].scenario()

    ranks = play(Job(scenario), tmp_path)

    assert [rank.error for rank in ranks] == [""] * len(ranks)
    logs = [rank.kernels for rank in ranks]
    assert all(logs), "all ranks communicate"
    assert faults(logs) == []
    assert faults(logs, eager=True) == []
    on_cpus = [_phases(plain) for plain in run_on_ranks(phases_on_gloo, len(ranks), scenario)]
    left_out = _SUMMED_IN_A_STREAM.get(name, set())
    assert [_without(rank.phases, left_out) for rank in ranks] == [_without(phases, left_out) for phases in on_cpus]


@pytest.mark.parametrize("name", ["ddp", *in_bulk("fsdp", "zero 1", "ddp after the backward pass")])
def test_marks_taken_in_a_backends_threads_are_on_the_ranks_own_gpu(name: str, tmp_path: Path) -> None:
    ranks = play(Job(FAMILIES[name].scenario(), staged=True), tmp_path)

    assert [rank.error for rank in ranks] == [""] * len(ranks)


@pytest.mark.full
@pytest.mark.parametrize(("own", "backend"), [(True, "nccl"), *in_bulk((False, "staged"))])
def test_ranks_that_see_one_gpu_each_use_nccl_if_these_differ(own: bool, backend: str, tmp_path: Path) -> None:
    job = Job(FAMILIES["ddp"].scenario(), separate_gpus if own else None, visible=1)

    assert {rank.backend for rank in play(job, tmp_path)} == {backend}


@pytest.mark.full
@pytest.mark.parametrize("name", ["fsdp", *in_bulk("hybrid with fsdp"), *at_night("fsdp of microbatches", "fsdp of groups")])
def test_interruptions_are_waits_of_the_stream_of_computation(name: str, tmp_path: Path) -> None:
    ranks = play(Job(FAMILIES[name].scenario(), checked_waits), tmp_path)

    assert [rank.error for rank in ranks] == [""] * len(ranks)
    assert all(rank.phases[Stream.MAIN, Phase.SYNCHRONISE] for rank in ranks)


def checked_waits(_: int) -> None:
    """Refuses interruptions of passes in which the stream of computation comes to wait for nothing."""
    waiting = Recorder.waiting

    @contextmanager
    def checked(recorder: Recorder, begin: Any) -> Iterator[None]:
        waits = LoggedGroup.log.waits
        before = waits.of_stream(_COMPUTATION)
        with waiting(recorder, begin):
            yield
        if waits.context.stream != _COMPUTATION or waits.of_stream(_COMPUTATION) <= before:
            raise RuntimeError("the stream of computation does not wait for anything")

    replaced: Any = Recorder
    replaced.waiting = checked


_TIED: dict[str, Any] = {"tied": True}


@pytest.mark.parametrize(
    ("strategy", "training", "model", "parts"),
    [
        (FAMILIES["fsdp"].strategy, {"zero": 3}, {}, [0.5] * 2),
        *in_bulk(
            ({"kind": "hybrid", "workers": 2, "stages": 1, "microbatches": 2}, {"zero": 3}, {}, [0.5] * 2),
            # workers have a vector of parameters and one of gradients; servers have their part, and one of each worker's pushes
            (FAMILIES["servers"].strategy, {}, {}, [2.0] * 2 + [1.5] * 2),
            ({"kind": "hybrid", "workers": 2, "stages": 1, "tensor": 2}, {"zero": 3}, {}, [0.25] * 4),
            ({"kind": "hybrid", "workers": 1, "stages": 1, "tensor": 2}, {}, {}, [0.5] * 2),
            ({"kind": "hybrid", "workers": 1, "stages": 1, "tensor": 2}, {}, _TIED, [0.5] * 2),
            (FAMILIES["gpipe"].strategy, {}, _TIED, [0.5] * 2),
            (FAMILIES["servers"].strategy, {}, _TIED, [2.0] * 2 + [1.5] * 2),
            (FAMILIES["hybrid with a server"].strategy, {}, {}, [2.0] * 2 + [3.0]),
            # servers also have copies in fp32, and no worker has; with ZeRO 1 workers have those of their shards
            (FAMILIES["hybrid with a server"].strategy, {"precision": "fp16"}, {}, [2.0] * 2 + [5.0]),
            (FAMILIES["zero 1"].strategy, {"precision": "fp16", "zero": 1}, {}, [2.5] * 2),
            ({"kind": "hybrid", "workers": 2, "bucket": "4 KiB"}, {"precision": "fp16", "zero": 1}, {}, [2.5] * 2),
        ),
    ],
)
def test_a_gpu_never_has_more_than_its_part_of_the_model_and_a_layer(
    strategy: dict[str, Any], training: dict[str, Any], model: dict[str, Any], parts: list[float], tmp_path: Path
) -> None:
    scenario = Family(strategy, training, {**TINY_GPT, "layers": 10, "hidden": 64, **model}).scenario()
    element_bytes = ELEMENT_BYTES[scenario.training.precision]
    sizes_bytes = [element_bytes * layer.parameters for layer in scenario.model.build_layers()]

    ranks = play(Job(scenario), tmp_path)

    assert [rank.error for rank in ranks] == [""] * len(parts)
    for rank, part in zip(ranks, parts, strict=True):
        # small tensors that are not divided, and copies of some that are
        margin_bytes = 1.5 * max(sizes_bytes)
        assert 0 <= rank.built_bytes - part * sum(sizes_bytes) < margin_bytes


@pytest.mark.parametrize(
    "name", [*at_night("fsdp", "overlapped servers", "scaled losses"), *in_bulk("hybrid", "experts", "ddp")]
)
def test_ranks_train_on_gpus_of_amd(name: str, tmp_path: Path) -> None:
    """Builds for them have the same names, of RCCL too; their GPUs may lack an identifier."""
    ranks = play(Job(FAMILIES[name].scenario(), amd_gpus), tmp_path)

    assert [rank.error for rank in ranks] == [""] * len(ranks)
    assert {rank.backend for rank in ranks} == {"nccl"}
    assert faults([rank.kernels for rank in ranks]) == []


@pytest.mark.parametrize("name", in_bulk("overlapped servers", "asynchronous servers", "hybrid with a server"))
def test_servers_have_updated_before_their_gpu_waits_for_gradients(name: str, tmp_path: Path) -> None:
    ranks = play(Job(FAMILIES[name].scenario(), refused_before_updates), tmp_path)

    assert [rank.error for rank in ranks] == [""] * len(ranks)


def refused_before_updates(rank: int) -> None:
    """Servers, after two workers, may receive nothing but the first token of a link before they have updated anything."""
    from scaleproof.validator.strategy.parameter_server.bucket_shard import BucketShard
    from scaleproof.validator.strategy.parameter_server.links import Links

    update, receive, updated = BucketShard.update, Links.receive, Event()

    def updating(part: BucketShard) -> bool:
        updated.set()
        return update(part)

    def receiving(links: Links, tensor: torch.Tensor, source: int) -> Any:
        if rank >= 2 and tensor.numel() > 1 and not updated.is_set():
            raise RuntimeError("received gradients before an update")
        return receive(links, tensor, source)

    replaced: Any = BucketShard
    replaced.update = updating
    replaced = Links
    replaced.receive = receiving


def separate_gpus(rank: int) -> None:
    """Ranks see different GPUs."""
    properties = vars(torch.cuda.get_device_properties(0)) | {"uuid": f"GPU-{rank}"}
    replaced: Any = torch.cuda
    replaced.get_device_properties = lambda _: SimpleNamespace(**properties)


def amd_gpus(rank: int) -> None:
    """Torch is built for AMD's GPUs, in a version that states no identifier."""
    properties = vars(torch.cuda.get_device_properties(0)) | {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942"}
    lacking = ("uuid", "pci_bus_id", "pci_domain_id", "pci_device_id")
    known = {name: value for name, value in properties.items() if name not in lacking}
    replaced: Any = torch.cuda
    replaced.get_device_properties = lambda _: SimpleNamespace(**known)
    torch.version.hip = "6.4.43483"


def _phases(plain: dict[str, int]) -> Phases:
    pairs = ((*map(int, key.split()),) for key in plain)
    return Counter({(stream, phase): count for (stream, phase), count in zip(pairs, plain.values(), strict=True)})


def _without(phases: Phases, left_out: set[tuple[Stream, Phase]]) -> Phases:
    return Counter({pair: count for pair, count in phases.items() if pair not in left_out})
