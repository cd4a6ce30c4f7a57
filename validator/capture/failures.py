"""Why a script could not be captured, in one sentence with the line of the script and what to do."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.validator.capture.backend.kernels import UnknownShapeError
from scaleproof.validator.capture.communication.mailbox import NoValueError
from scaleproof.validator.capture.context import ScriptContext
from scaleproof.validator.capture.packages import STAND_INS
from scaleproof.validator.capture.packages.importing import missing_words

# Packages with kernels of their own for CUDA, which a process without a GPU cannot load.
_CUDA_PACKAGES: Final = (
    *STAND_INS, "transformer_engine_torch", "fused_layer_norm_cuda", "fbgemm_gpu", "cupy", "pycuda", "nvidia", "pynvml",
)  # fmt: skip
_CUDA_LIBRARY: Final = re.compile(
    r"libcu\w+\.so|libnccl|libcudnn|CUDA_HOME|undefined symbol|nvcc|no kernel image", re.IGNORECASE
)
_NETWORK_ERRORS: Final = (
    "URLError", "ConnectionError", "gaierror", "MaxRetryError", "OfflineModeIsEnabled", "LocalEntryNotFoundError",
    "HTTPError", "ConnectError", "TransportError", "ProxyError", "SSLError", "ConnectTimeout", "HfHubHTTPError",
)  # fmt: skip
_NETWORK_TEXT: Final = re.compile(
    r"couldn't connect|connection (refused|error)|name resolution|max retries|failed to resolve|getaddrinfo"
    r"|is not a local folder|couldn't reach|offline mode|does not appear to have (a file|files) named"
    r"|can't load (the )?(tokenizer|config|model|feature|image|processor)\w* for"
    r"|cannot find the requested files in the (disk|local)"
    r"|HF_HUB_OFFLINE|entry was not found in the (local )?cache", re.IGNORECASE
)  # fmt: skip
_MODULE: Final = re.compile(r"No module named '([\w.]+)'")


class NoStepError(Exception):
    """The script ended without a training step."""


def sentence(script: str, failure: dict[str, Any], hint: str = "--log DIR keeps what it printed") -> str:
    """One sentence. failure: see `failure_plain`, perhaps with the last line that the script 'printed'. hint: how to learn more
    of an error that is the script's own."""
    where = failure["line"] or script
    text, kinds = failure["text"], failure["kind"].split()
    if failure.get("ours"):
        return f"{where}: {text}"
    module = _MODULE.search(text)
    package = module[1].partition(".")[0] if module else ""
    spelled = {name: name.replace("_", "[_ -]?").replace("attn", "att(n|ention)") for name in STAND_INS}
    optional = next((name for name, pattern in spelled.items() if re.search(pattern, text, re.IGNORECASE)), "")
    if "ImportError" in kinds and optional:
        return f"{where}: the script needs {optional}, which is not installed here ({text}); capture with --with {optional}"
    is_import = "ImportError" in kinds and (package in _CUDA_PACKAGES or bool(_CUDA_LIBRARY.search(text)))
    if is_import or "CUDA_HOME" in text:
        what = f"imports {package}" if package else f"loads an extension for CUDA ({text})"
        return f"{where}: the script {what}, which needs a GPU or is not installed; capture it with PyTorch's own operators"
    if package:
        return f"{where}: the script imports {package}, which is not installed here; pip install it into this environment"
    if any(kind in _NETWORK_ERRORS for kind in kinds) or _NETWORK_TEXT.search(text):
        return f"{where}: the script needs the network ({text}); download the data before, or capture with synthetic data"
    if "CheckpointError" in kinds:
        what = f"the second forward pass of torch.utils.checkpoint differs from the first ({text})"
        return f"{where}: {what}; let both call the same operators, or pass debug=True to checkpoint to see where they differ"
    if "FileNotFoundError" in kinds:
        return f"{where}: the script needs a file that does not exist ({text}); create it, or start capture in its folder"
    if "SyntaxError" in kinds:
        return f"{where}: {text}; correct the script"
    if "SystemExit" in kinds:
        printed = failure.get("printed", "")
        said = f": {printed}" if printed and printed not in text else ""
        return f"{where}: the script exited before its first training step ({text}{said}); check its arguments"
    return f"{where}: the script failed on rank {failure['rank']} ({text}); {hint}"


def failure_plain(error: BaseException, context: ScriptContext | None, rank: int) -> dict[str, Any]:
    """Why a script failed, as `sentence` reads it."""
    while isinstance(error, ImportError) and error.__cause__ is not None:
        # packages that load their parts late hide why a part could not be loaded
        error = error.__cause__.with_traceback(error.__traceback__)
    is_ours = isinstance(error, ScaleproofError | NoStepError | UnknownShapeError | NoValueError)
    said = str(error).strip() or _source(error)
    lines = f"{type(error).__name__}: {said}".splitlines()
    # an error of another process ends with its own text
    also = f" {lines[-1]}" if "Original Traceback" in said else ""
    text = said if is_ours else f"{lines[0].removesuffix(': ')}{also}"
    missing = missing_words(text)
    line = _own_line(error, context)
    return {"line": line, "text": missing or text, "kind": _kind(error), "rank": rank, "ours": is_ours or bool(missing)}


def _source(error: BaseException) -> str:
    """The line that failed, of an error without a text, as assertions are."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip() if trace is not None else ""
    return line if not line.startswith("raise") else ""


def _own_line(error: BaseException, context: ScriptContext | None) -> str:
    """Where the innermost line of the script's own raised an error; for a SyntaxError, where it is."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    found = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if context is not None and context.is_own_file(path):
            found = f"{Path(path).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _kind(error: BaseException) -> str:
    """Name of an error's type, and of those that it derives from, for who says what to do."""
    return " ".join(each.__name__ for each in type(error).__mro__)
