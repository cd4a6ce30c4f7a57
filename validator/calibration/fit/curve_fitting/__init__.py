"""Fits of measured times: curves by size, slow members among equivalent ones, and the error of fits on held-out data.

lines      a straight line through a few medians, and held-out errors as an interval of shares
curves     latency, seconds per byte and overhead from times by size, with intervals; the model is chosen by held-out error;
           a curve as the line segments of a cluster file
shapes     the models of such curves: seconds as a sum of coefficients times bytes
choice     choice of the model by its error on sizes to which it was not fitted
robust     the robust least squares by which curves are fitted
samples    whether the repetitions of one measurement have two modes
groups     slow members among equivalent ones
"""

from scaleproof.validator.calibration.fit.curve_fitting.lines import line

__all__ = ["line"]
