"""The command import kernels: what it prints and writes, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scaleproof
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_device
from tests.validator.kernels.made import ATTENTION, GEMM, sampled, written

GPU = "A100-80GB-SXM"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sampled(tmp_path_factory.mktemp("tables") / "a100.csv", GPU, 60)


def test_a_device_is_fitted_and_written(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    assert scaleproof.main(["import", "kernels", str(table), "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{GPU}: data sheet of {GPU}; errors are those of shapes that were left out of the fit"
    assert [line.split()[:3] for line in printed[2:4]] == [["gemm", "bf16", "60"], ["attention_forward", "bf16", "trtllm"]]
    assert any(line.startswith("assumed, as in A100-80GB-SXM: backward passes of attention") for line in printed)
    assert printed[-1] == f"wrote {out}"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
    device = load_device(out)
    assert device.kernels is not None
    assert set(device.kernels.products) == {"bf16"}
    run = predict(load("llama-2-7b-fsdp-a100", [f"cluster.device={out}"]), interval=False)
    assert run.step_time_s > 0
    assert scaleproof.main(["device", str(out)]) == 0
    assert "matrix products bf16" in capsys.readouterr().out


def test_the_fit_is_printed_as_json_without_a_file(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["import", "kernels", str(table), "--like", "a100-40gb-sxm", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["gpu"], plain["like"], plain["out"]) == (GPU, "A100-40GB-SXM", "")
    fit = plain["fits"][0]
    assert set(fit) == {"kind", "precision", "rows", "median", "p95", "error", "coverage", "implementation"}
    assert fit["error"][0] < fit["error"][1]


@pytest.mark.full
def test_attention_has_the_name_that_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = sampled(tmp_path / "t.csv", GPU, 20)
    assert scaleproof.main(["import", "kernels", str(table), "--json"]) == 0
    assert "no framework that ships runs attention called trtllm" in json.loads(capsys.readouterr().out)["notes"][-1]
    out = tmp_path / "mine.yaml"
    assert scaleproof.main(["import", "kernels", str(table), "--attention", "flash-2", "--out", str(out)]) == 0
    assert capsys.readouterr().err == ""
    device = load_device(out)
    assert device.kernels is not None
    assert next(iter(device.kernels.attention)) == "flash-2"
    assert scaleproof.main(["device", str(out)]) == 0
    lines = {" ".join(line.split()[:2]): line for line in capsys.readouterr().out.splitlines()}
    assert lines["attention flash-2"].endswith("measured")
    assert lines["attention cudnn"].endswith("data sheet") or lines["attention cudnn"].endswith("assumed")
    assert "as on other devices of ampere, since it was not measured" in lines["other attention"]
    assert scaleproof.main(["import", "kernels", str(table), "--attention", "best"]) == 2
    assert "no name of an implementation of attention" in capsys.readouterr().err


def several(folder: Path) -> Path:
    return written(folder / "several.csv", GEMM, ATTENTION | {"gpu": GPU, "latency_us": "9000"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv"], "missing.csv: no such file"),
        (["several.csv"], "several.csv: kernels of several GPUs; give one of H100-80GB-SXM, A100-80GB-SXM with --device"),
        (["several.csv", "--device", "T4"], "several.csv: no kernels of T4; give one of"),
        (["several.csv", "--device", GPU], "no kind of kernel could be fitted"),
        (["several.csv", "--device", GPU, "--like", "nothing"], "no device is called 'nothing'"),
        (["several.csv", "--device", GPU, "--out", "d.txt"], "--out d.txt: give the name of a device file that ends in .yaml"),
        (["unknown.csv"], "no device of the GPU B900 ships; give the closest one with --like"),
        (["nameless.csv"], "nameless.csv:2: no GPU; name it in the column gpu"),
        (["wrong.csv"], "wrong.csv:2: latency_us is not a number of microseconds above zero, got 'soon'"),
        (["ms.csv"], "times must be in microseconds: multiply those in milliseconds by 1,000"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    several(tmp_path)
    written(tmp_path / "unknown.csv", GEMM | {"gpu": "B900"})
    written(tmp_path / "nameless.csv", {name: cell for name, cell in GEMM.items() if name != "gpu"})
    written(tmp_path / "wrong.csv", GEMM | {"latency_us": "soon"})
    sampled(tmp_path / "ms.csv", GPU, 12, 1e-3)
    before = set(tmp_path.iterdir())
    assert scaleproof.main(["import", "kernels", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before
