"""Failures of scripts are said in one sentence with the script's line and what to do."""

from __future__ import annotations

import pytest

from scaleproof.validator.capture.failures import failure_plain, sentence


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("ModuleNotFoundError: No module named 'flash_attn'", "ImportError", "capture with --with flash_attn"),
        ("ModuleNotFoundError: No module named 'numpyro'", "ImportError", "pip install it"),
        ("ImportError: libcudart.so.12: cannot open shared object file", "ImportError", "loads an extension for CUDA"),
        ("OSError: CUDA_HOME environment variable is not set", "OSError", "loads an extension for CUDA"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'", "FileNotFoundError", "needs a file"),
        ("URLError: <urlopen error [Errno -2] Name or service not known>", "URLError OSError", "needs the network"),
        ("OSError: We couldn't connect to 'https://huggingface.co'", "OSError", "needs the network"),
        ("OSError: org/model does not appear to have a file named config.json.", "OSError", "needs the network"),
        ("OSError: Can't load tokenizer for 'org/model'. If you were", "OSError", "needs the network"),
        ("SystemExit: 2", "SystemExit BaseException", "exited before its first training step"),
        ("ValueError: width 3", "ValueError Exception", "failed on rank 5 (ValueError: width 3)"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_line_and_the_remedy(text: str, kind: str, expected: str) -> None:
    said = sentence("train.py", {"line": "train.py:7", "text": text, "kind": kind, "rank": 5})
    assert said.startswith("train.py:7: ")
    assert expected in said
    assert "\n" not in said


def test_an_exit_repeats_what_the_script_printed_last() -> None:
    failure = {"line": "train.py:7", "text": "SystemExit: 2", "kind": "SystemExit", "rank": 0}
    said = sentence("train.py", failure | {"printed": "train.py: error: unrecognized arguments: --nope"})
    assert "(SystemExit: 2: train.py: error: unrecognized arguments: --nope)" in said


def test_an_assertion_without_a_text_is_named_by_its_line() -> None:
    with pytest.raises(AssertionError) as raised:
        exec(compile("assert 1 + 1 == 3", __file__, "exec"))
    plain = failure_plain(raised.value, None, 0)
    # line 1 of this file, since the compiled text says that it is there
    assert plain["text"].startswith("AssertionError: ")
    assert plain["text"] != "AssertionError: "


def test_an_error_without_a_line_names_the_script() -> None:
    assert sentence("train.py", {"line": "", "text": "ended", "kind": "", "rank": 0, "ours": True}) == "train.py: ended"


def test_what_keeps_a_part_of_a_package_from_loading_is_said() -> None:
    late = ModuleNotFoundError("Could not import module 'Trainer'")
    late.__cause__ = AttributeError("module 'torch._C' has no attribute 'x'")
    assert failure_plain(late, None, 0)["text"] == "AttributeError: module 'torch._C' has no attribute 'x'"
