"""Times of a model's layers from a trace whose annotations mark each layer's forward pass.

Work launched within an annotation is the layer's forward pass. Its backward pass is the work launched by the gradient functions
that autograd made for the operators within it: both have the same sequence number (torch/csrc/autograd/profiler_kineto.cpp).
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model.layers import Layer
from scaleproof.validator.calibration.cluster_file.section import seconds_text
from scaleproof.validator.calibration.imports.kineto import DeviceWork, Trace, TraceSpan
from scaleproof.validator.calibration.imports.reading import ImportNotes, as_number
from scaleproof.validator.calibration.imports.steps import union_s
from scaleproof.validator.probe.points import Point


class TracedLayerTimes(NamedTuple):
    """Seconds of each call of the layers of one signature."""

    signature: str
    forward_s: list[float]
    backward_s: list[float]


def parse_names(texts: Sequence[str]) -> dict[str, str]:
    """Layers by annotation: {'Block': 'gpt.block'} from 'Block=gpt.block'. Raises InputError."""
    pairs = [text.partition("=") for text in texts]
    if wrong := next((text for text, pair in zip(texts, pairs, strict=True) if not (pair[0] and pair[2])), None):
        raise InputError(f"--layer {wrong}: expected ANNOTATION=LAYER, such as 'nn.Module: Block=gpt.block'")
    return {name: layer for name, _, layer in pairs}


def times(
    traces: Sequence[Trace], layers: Sequence[Layer], names: Mapping[str, str], notes: ImportNotes
) -> list[TracedLayerTimes]:
    """Times of all layers that annotations name: by a prefix in `names`, or by the layer's own name or signature.

    Layers without an annotation are noted. Raises InputError for a name that no layer has.
    """
    signatures = dict.fromkeys(layer.signature for layer in layers)
    known = {layer.name: layer.signature for layer in layers} | {signature: signature for signature in signatures}
    prefixes = {name: _signature(layer, known) for name, layer in names.items()}
    by_signature = {signature: TracedLayerTimes(signature, [], []) for signature in signatures}
    for trace in traces:
        passes = _Passes(trace)
        for span in trace.annotations:
            signature = known.get(span.name) or next(
                (s for prefix, s in prefixes.items() if span.name.startswith(prefix)), None
            )
            if signature is not None and (forward_s := passes.forward_s(span)) > 0:
                by_signature[signature].forward_s.append(forward_s)
                by_signature[signature].backward_s.append(passes.backward_s(span))
    measured = [layer for layer in by_signature.values() if layer.forward_s]
    if measured and (missing := [signature for signature, layer in by_signature.items() if not layer.forward_s]):
        notes.add(f"no annotation names {', '.join(missing)}; their times are those of the device")
    return measured


def _signature(layer: str, known: Mapping[str, str]) -> str:
    """Signature of the layer with this name, or whose signature begins with it. Raises InputError if there is not exactly
    one."""
    matching = dict.fromkeys(signature for name, signature in known.items() if name == layer or signature.startswith(layer))
    if len(matching) != 1:
        what = "several layers are" if matching else "no layer is"
        several = ", ".join(matching or dict.fromkeys(known.values()))
        raise InputError(f"--layer: {what} called {layer!r}; give one of {several}")
    return next(iter(matching))


class _Passes:
    """Launched work and gradient functions of a trace, by host thread."""

    def __init__(self, trace: Trace) -> None:
        computing = sorted((work for work in trace.works if work.exchange is None), key=lambda work: work.launched_s)
        self._works: dict[str, list[DeviceWork]] = {}
        for work in computing:
            self._works.setdefault(work.thread, []).append(work)
        self._launched = {thread: [work.launched_s for work in works] for thread, works in self._works.items()}
        self._gradients: dict[int, list[TraceSpan]] = {}
        makers: dict[int, TraceSpan] = {}
        for span, arguments in sorted(trace.operators, key=lambda pair: pair[0].start_s):
            number = as_number(arguments.get("Sequence number"))
            if number is None or number < 0:
                continue
            if (as_number(arguments.get("Fwd thread id")) or 0) > 0:
                self._gradients.setdefault(int(number), []).append(span)
            else:
                # earlier operators that need no gradient have the same number; the last one counts
                makers[int(number)] = span
        self._made: dict[str, list[tuple[float, int]]] = {}
        for number, span in makers.items():
            self._made.setdefault(span.thread, []).append((span.start_s, number))
        for made in self._made.values():
            made.sort()

    def forward_s(self, span: TraceSpan) -> float:
        return union_s(self._within([span]))

    def backward_s(self, span: TraceSpan) -> float:
        made = self._made.get(span.thread, [])
        first, last = bisect.bisect_left(made, (span.start_s, -1)), bisect.bisect_right(made, (span.end_s, -1))
        numbers = (number for _, number in made[first:last])
        return union_s(self._within(gradient for number in numbers for gradient in self._gradients.get(number, [])))

    def _within(self, spans: Iterable[TraceSpan]) -> list[DeviceWork]:
        """Work launched within the spans, on their threads."""
        works = []
        for span in spans:
            launched = self._launched.get(span.thread, [])
            first, last = bisect.bisect_left(launched, span.start_s), bisect.bisect_right(launched, span.end_s)
            works += self._works.get(span.thread, [])[first:last]
        return works


def entries(measured: Sequence[TracedLayerTimes], samples: int, precision: str) -> list[dict[str, Any]]:
    """Entries of a device's `measured_layers`. One number of samples was timed."""
    return [
        {
            "signature": layer.signature,
            "precision": precision,
            "samples": [samples],
            "forward": [seconds_text(statistics.median(layer.forward_s))],
            "backward": [seconds_text(statistics.median(layer.backward_s))],
        }
        for layer in measured
    ]


def points(measured: Sequence[TracedLayerTimes], samples: int) -> list[Point]:
    """Points of the forward and backward pass of each signature."""
    return [
        Point("layer", f"{layer.signature} {way}", "all ranks", (), "", float(samples), "samples", tuple(seconds), "time")
        for layer in measured
        for way, seconds in (("forward", layer.forward_s), ("backward", layer.backward_s))
    ]
