"""Every function of torch.cuda, torch.accelerator and torch.distributed takes its arguments by their documented names."""

import inspect
import types

import torch
import torch.distributed as dist
from torch import nn

MODULES = (
    torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.nvtx, torch.cuda.nccl, torch.accelerator,
    torch.accelerator.memory, dist, dist.distributed_c10d, torch.multiprocessing,
)  # fmt: skip
# Drives several GPUs from one process, or shares memory with other processes.
UNSUPPORTED = {"all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter", "init_rank", "unique_id"}


def problems(module: types.ModuleType) -> list[str]:
    """What keeps documented calls of a module's functions from working."""
    found = []
    for name, function in vars(module).items():
        if name.startswith("_") or not isinstance(function, types.FunctionType) or not function.__module__.startswith("torch"):
            continue
        replacement = inspect.getclosurevars(function).nonlocals.get("function") if hasattr(function, "__wrapped__") else None
        if replacement is not None:
            documented = inspect.signature(function.__wrapped__).parameters.values()
            named = [one.name for one in documented if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
            placed = [one.name for one in documented if one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY)]
            try:
                signature = inspect.signature(replacement)
                signature.bind(**dict.fromkeys(named)) if named else signature.bind(*placed)
                signature.bind(*placed, **{name: None for name in named if name not in placed})
            except TypeError as error:
                found.append(f"{module.__name__}.{name}: {error}")
        elif module is not torch.cuda.nccl or name not in UNSUPPORTED:
            needed = [each for each in function.__code__.co_names if each.startswith(("_cuda_", "_accelerator_"))]
            missing = [each for each in needed if not hasattr(torch._C, each)]
            if missing:
                found.append(f"{module.__name__}.{name} needs {missing}")
    return found


assert not (found := [problem for module in MODULES for problem in problems(module)]), "; ".join(found)
replaced = [name for module in MODULES for name, one in vars(module).items() if hasattr(one, "__wrapped__")]
assert len(replaced) > 100, len(replaced)
device = torch.device("cuda", 0)
side, timer = torch.cuda.Stream(device=device, priority=-1), torch.cuda.Event(enable_timing=True, blocking=False)
assert torch.cuda.Stream.priority_range()[1] < 0
with torch.cuda.device_of(obj=torch.ones(1, device="cuda")), torch.cuda.stream(stream=side):
    timer.record(stream=side)
torch.cuda.current_stream(device=device).wait_event(event=timer)
free, total = torch.cuda.mem_get_info(device=device)
assert 0 < free <= total == torch.cuda.get_device_properties(device=device).total_memory
assert (
    torch.cuda.memory_stats(device=device)["allocated_bytes.all.peak"]
    == torch.accelerator.memory_stats()["allocated_bytes.all.peak"]
)
generator = torch.Generator(device="cuda").manual_seed(3)
assert generator.device.type == "cuda"
assert len(torch.cuda.default_generators) == torch.cuda.device_count()
state = torch.cuda.get_rng_state(device=device)
torch.cuda.manual_seed_all(seed=5)
assert torch.cuda.initial_seed() == 5
torch.cuda.set_rng_state(new_state=state, device=device)
assert torch.cuda.initial_seed() != 5
assert isinstance(torch.cuda.LongTensor([1, 2]), torch.cuda.LongTensor)
assert torch.ones(2).type("torch.cuda.HalfTensor").is_cuda
torch.cuda.cudart().cudaProfilerStart()
assert torch.version.cuda
assert torch.backends.cudnn.version()
assert dist.is_nccl_available()

model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profiler:
    for _ in range(5):
        model(torch.randn(8, 64, device="cuda", generator=generator)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
