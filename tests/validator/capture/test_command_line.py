"""Commands that start a script, as users write them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scaleproof.simulator.captured.record import EventKind
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.capture.capture import CaptureOptions, capture
from scaleproof.validator.capture.command.command_line import job_of, parse
from scaleproof.validator.capture.job import Script, set_environment


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lr 1",
        "python3.11 -u train.py --lr 1",
        "python -W error train.py --lr 1",
        "/usr/bin/python3 train.py --lr 1",
        "train.py --lr 1",
        "torchrun --nproc_per_node 8 --nnodes 2 train.py --lr 1",
        "python -m torch.distributed.run --nproc-per-node=8 train.py --lr 1",
        "torchrun --no-python --nproc_per_node 8 python train.py --lr 1",
        "composer -n 8 train.py --lr 1",
        "uv run --with accelerate train.py --lr 1",
        "poetry run python train.py --lr 1",
        "nsys profile -o python torchrun train.py --lr 1",
    ],
)
def test_the_script_and_its_arguments_are_found(command: str) -> None:
    assert parse(command.split()).script == Script("train.py", ("--lr", "1"))


def test_torchrun_says_how_many_ranks_there_are() -> None:
    started = parse(["torchrun", "--nproc_per_node", "8", "--nnodes", "2", "train.py"])
    assert (started.ranks, started.ranks_per_node) == (16, 8)
    assert parse(["torchrun", "train.py"]).ranks is None


@pytest.mark.parametrize(
    ("command", "ranks", "per_node"),
    [
        ("torchrun --standalone --nproc_per_node 8 train.py", 8, 8),
        ("deepspeed --num_gpus 8 --num_nodes 2 train.py --deepspeed_config ds.json", 16, 8),
        ("deepspeed --hostfile hosts train.py", 16, 8),
        ("deepspeed --include a:0,1@b:0,1 train.py", 4, 2),
        ("composer --nproc 8 --world_size 16 -m package.train", 16, 8),
        ("srun -N2 --ntasks-per-node=8 --label python train.py -n 3", 16, 8),
        ("srun -N 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc_per_node 8 train.py", 16, 8),
        ("mpirun -np 16 -H a:8,b:8 --allow-run-as-root python train.py", 16, 8),
        ("CUDA_VISIBLE_DEVICES=0,1 python train.py", 2, 2),
        ("env CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node gpu train.py", 4, 4),
    ],
)
def test_launchers_say_how_many_ranks_there_are(command: str, ranks: int, per_node: int) -> None:
    Path("hosts").write_text("a slots=8\n# c\nb slots=8\n")
    assert parse(command.split())[1:3] == (ranks, per_node)


def test_launchers_read_the_file_with_their_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("settings.yaml").write_text("num_processes: 16\nnum_machines: 2\n")
    install("accelerate", tmp_path, monkeypatch, "")
    started = parse(["accelerate", "launch", "--config_file", "settings.yaml", "train.py", "--num-processes", "3"])
    assert started[1:3] == (16, 8)
    install("litgpt", tmp_path, monkeypatch, "")
    assert parse(["litgpt", "finetune_lora", "models/litgpt", "--devices", "8"]).ranks == 8


def test_each_device_of_the_cluster_is_a_rank_where_torchrun_takes_all() -> None:
    started = parse(["torchrun", "--nnodes", "2", "--nproc_per_node", "gpu", "train.py"])
    job, _ = job_of(started, None, None, "dgx-h100")
    assert (job.world_size, job.ranks_per_node) == (16, 8)


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ("srun -N 2 -n 16 --export=ALL,A=$$x python train.py", {
            "SLURM_PROCID": "11", "SLURM_LOCALID": "3", "SLURM_NODEID": "1", "SLURM_NTASKS": "16",
            "SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_NODELIST": "node[0-1]", "A": "$$x",
        }),
        ("srun -N 2 torchrun --nnodes 2 --nproc_per_node 8 train.py", {
            "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "RANK": "11",
        }),
        ("mpirun -np 16 -ppn 8 -x A=b -x PATH python train.py", {
            "OMPI_COMM_WORLD_RANK": "11", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_SIZE": "16", "A": "b",
        }),
        ("A=${rank} env B=c python train.py", {"A": "${rank}", "B": "c", "RANK": "11", "WORLD_SIZE": "16"}),
    ],
)  # fmt: skip
def test_launchers_set_the_environment_of_each_rank(
    command: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    set_environment(parse(command.split()).script, rank=11, ranks=16, per_node=8)
    assert {name: os.environ[name] for name in variables} == variables


@pytest.mark.parametrize(
    ("command", "argument"),
    [("deepspeed --num_gpus 8", "--local_rank=${local_rank}"),
     ("python -m torch.distributed.launch --nproc_per_node 8", "--local-rank=${local_rank}")],
)  # fmt: skip
def test_some_launchers_give_the_script_its_rank_on_the_node(command: str, argument: str) -> None:
    assert parse([*command.split(), "train.py", "--lr", "1"]).script.arguments == (argument, "--lr", "1")


def install(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Makes a console command of this Python."""
    command = folder / "bin" / name
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!{sys.executable}\n{text}")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)


@pytest.mark.parametrize(
    "starts",
    [
        "import torch.distributed.run as run; run.main(['--nproc_per_node', '2', *sys.argv[2:]])",
        "import subprocess; subprocess.run([sys.executable, '-u', *sys.argv[2:]], env=dict(os.environ))",
    ],
)
@pytest.mark.full
def test_launchers_that_set_much_are_run_by_each_rank(starts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("accelerate", tmp_path, monkeypatch, f"import os, sys\nos.environ['PRECISION'] = 'bfloat16'\n{starts}\n")
    Path("train.py").write_text(
        "import os, sys, torch\n"
        "assert (sys.argv[1:], os.environ['RANK']) == (['--lr', '1'], '0')\n"
        "model = torch.nn.Linear(8, 8, device='cuda', dtype=getattr(torch, os.environ['PRECISION']))\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.ones(2, 8, device='cuda', dtype=model.weight.dtype)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    started = parse(["accelerate", "launch", "train.py", "--lr", "1"])
    job, device = job_of(started, 1, "h100-80gb-sxm", None)
    found, _ = capture(job, CaptureOptions(device, timeout_s=100), lambda _: None)
    lines = {found.classes[0].text("line", row) for row in found.classes[0].rows(EventKind.OPERATOR)}
    assert "train.py:6" in lines


def test_a_module_is_run_as_one() -> None:
    assert parse(["python", "-m", "package.train", "--lr", "1"]).script == Script(
        "package.train", ("--lr", "1"), is_module=True
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "give the command that starts the script after --"),
        ("python", "the command has no script"),
        ("python missing.py", "missing.py: no such script"),
        ("python -m", "-m needs the name of a module"),
        ("torchrun --no-such-option train.py", "torchrun does not accept"),
        ("bash train.sh", "give the command that it runs, such as: torchrun"),
        ("python -c pass", "write these lines into a file"),
        ("srun -N 2 bash train.sh", "no script found; give the command that it runs"),
        ("tune run --nnodes 2 --nproc_per_node 4 train.py", "or give: torchrun --nnodes 2 --nproc_per_node 4 train.py"),
        ("mpirun -np 2 --hostfile missing/hosts python train.py", "missing/hosts: the file of hosts cannot be read"),
    ],
)
def test_other_commands_are_refused(command: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(command.split())
