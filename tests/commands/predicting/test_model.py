"""`scaleproof model`: the table, its JSON, and the messages for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaleproof import main
from scaleproof.simulator.common import catalog
from scaleproof.simulator.model import Layer
from scaleproof.simulator.model.layer_table import DeviceRates, rows
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound
from scaleproof.simulator.scenario.read import load_model

Capture = pytest.CaptureFixture[str]


GROUND = DeviceRates("device", "bf16", 2, 300e12, 1e12, 1)


def printed(capsys: Capture, *arguments: str) -> str:
    assert main(["model", *arguments]) == 0
    return capsys.readouterr().out


def read(capsys: Capture, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(capsys, *arguments, "--json"))
    return found


def error_of(capsys: Capture, *arguments: str) -> str:
    """The one-line error message for bad input."""
    assert main(["model", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err.rstrip()


def test_the_total_row_equals_the_sums_over_the_models_layers(capsys: Capture) -> None:
    found = read(capsys, "llama-3-8b")
    layers = load_model("llama-3-8b").build_layers()
    assert found["model"] == "llama-3-8b"
    assert found["total"]["parameters"] == 8_030_261_248
    assert found["total"]["count"] == len(layers) == sum(row["count"] for row in found["layers"])
    assert found["total"]["forward_flops"] == pytest.approx(sum(layer.forward_flops for layer in layers))
    assert [(row["name"], row["count"]) for row in found["layers"]] == [("embedding", 1), ("block0…31", 32), ("head", 1)]


def test_each_option_changes_only_its_own_quantities(capsys: Capture) -> None:
    block = read(capsys, "llama-3-8b")["layers"][1]
    shorter = read(capsys, "llama-3-8b", "--seq", "4096")["layers"][1]
    share = read(capsys, "llama-3-8b", "--tensor", "8")["layers"][1]
    wide = read(capsys, "llama-3-8b", "--precision", "fp32")["layers"][1]
    several = read(capsys, "llama-3-8b", "--samples", "16")["layers"][1]
    assert shorter["output_bytes"] == block["output_bytes"] / 2
    assert share["forward_flops"] == block["forward_flops"] / 8
    assert wide["output_bytes"] == 2 * block["output_bytes"]
    assert several["forward_flops"] == block["forward_flops"]
    assert several["intensity"] > block["intensity"], "weights are read once for all samples"


def test_the_device_decides_which_resource_bounds_a_layer(capsys: Capture) -> None:
    found = read(capsys, "gpt2-small", "--device", "a100-80gb-sxm")
    assert found["balance"] == pytest.approx(312e12 / 2039e9, rel=1e-2)
    assert read(capsys, "gpt2-small", "--cluster", "dgx-a100")["balance"] == pytest.approx(found["balance"], rel=1e-2)
    for row in found["layers"]:
        assert row["bound_by"] == ("compute" if row["intensity"] >= found["balance"] else "memory")


@pytest.mark.parametrize("name", catalog.names("models"))
def test_tables_of_all_shipped_models_fit_120_columns(name: str, capsys: Capture) -> None:
    table = printed(capsys, name)
    assert table.startswith(f"{name}: ")
    assert "all layers" in table
    assert max(len(line) for line in table.splitlines()) <= 120


def test_the_title_names_active_parameters_and_tensor_parallel_ranks(capsys: Capture) -> None:
    title = printed(capsys, "mixtral-8x7b", "--tensor", "8", "--seq", "2048").splitlines()[0]
    assert title == (
        "mixtral-8x7b: 46.7 B parameters, of which a token uses 12.9 B; 2,048 tokens a sample; one of 8 tensor-parallel ranks"
    )


def test_the_title_names_trained_parameters_where_some_are_frozen(capsys: Capture) -> None:
    frozen = "python:tests.simulator.model.tracing.frozen_models:frozen_tower"
    title = printed(capsys, frozen).splitlines()[0]
    assert title == "frozen_tower: 166 k parameters; 4.16 k of them trained (2.5%)"
    data = read(capsys, frozen)
    assert (data["total"]["parameters"], data["total"]["trained_parameters"]) == (40 * 4160, 4160)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama3",), "no model is called 'llama3'; did you mean 'llama-3-8b', 'llama-3-70b' or 'llama-3-405b'?"),
        (("llama-3-8b", "--tensor", "64"), "--tensor 64: 64 ranks do not divide heads 32; give a divisor of it, such as 32"),
        (("resnet50", "--tensor", "2"), "--tensor 2: a resnet cannot be divided among ranks; leave tensor out"),
        (("resnet50", "--seq", "8"), "resnet50 with sequence=8: model.sequence: unknown key"),
        (("bert-base", "--seq", "513"), "sequence: 513 is more than position_rows 512; give at most that many"),
        (("llama-3-8b", "--strict"), "llama-3-8b with strict=True: model.strict: unknown key"),
        (("llama-3-8b", "--precision", "int4"), "--precision int4: H100-80GB-SXM has no peak rate for it; use one of bf16"),
        (("llama-3-8b", "--cluster", "dgx-h10"), "no cluster is called 'dgx-h10'; did you mean 'dgx-h100'?"),
        (("llama-3-8b", "--device", "k8"), "no device is called 'k8'; did you mean 'k80'?"),
        (("hf:nowhere",), "nowhere: No such file or directory; give hf: and the path of a model's config.json"),
        (("python:nowhere:build",), "nowhere"),
    ],
)
def test_bad_input_gives_a_one_line_error(arguments: tuple[str, ...], message: str, capsys: Capture) -> None:
    assert message in error_of(capsys, *arguments)


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5"])
def test_numbers_that_are_not_positive_integers_are_rejected(number: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["model", "llama-3-8b", "--seq", number])
    assert f"expected a whole number of at least 1, got '{number}'" in capsys.readouterr().err


def test_a_hugging_face_configuration_is_read_from_a_path(tmp_path: Path, capsys: Capture) -> None:
    config = {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257, "model_type": "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read(capsys, f"hf:{tmp_path}")["total"]["parameters"] == 124_439_808
    assert read(capsys, f"hf:{tmp_path}/config.json", "--seq", "512")["total"]["parameters"] == 124_439_808


def test_bytes_of_an_operator_are_its_reads_plus_its_writes() -> None:
    assert Matmul("m", 4, 5, 6, count=3).moved_elements(2) == 3 * (8 * 6 + 6 * 5 + 8 * 5)
    assert Convolution("c", 3, 8, (5, 5), 100, 300).moved_elements(2) == 8 * 3 * 25 + 2 * (300 + 800)
    assert MemoryBound("n", 7, 9, 1, 1).moved_elements(2) == 32
    # queries and outputs of four heads, keys and values of two; scores pass four times where they are written down
    flash = Attention("a", 4, 2, 10, 20, 8, 6, flash=True).moved_elements(1)
    assert flash == 4 * 10 * (8 + 6) + 2 * 20 * (8 + 6)
    assert Attention("a", 4, 2, 10, 20, 8, 6).moved_elements(1) == flash + 4 * 4 * 10 * 20


def test_only_consecutive_equal_layers_share_a_row() -> None:
    names = ["block8", "block9", "block10"]
    layers = [Layer(name, "a", (), (), 1) for name in names] + [
        Layer("other", "b", (), (), 1),
        Layer("block11", "a", (), (), 1),
    ]
    assert [(row.name, row.count) for row in rows(layers, GROUND)] == [("block8…10", 3), ("other", 1), ("block11", 1)]


def test_zero_memory_bandwidth_gives_a_one_line_error(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "device.yaml").write_text("{name: dull, peak: {bf16: 1 TFLOP/s}, memory: 1 GiB, memory_bandwidth: 0}")
    assert "memory_bandwidth: the bandwidth is zero" in error_of(capsys, "llama-3-8b", "--device", f"{tmp_path}/device.yaml")
