"""Fits of measured times: curves by size, odd members of alike groups, and how far fits are off where they were not made.

lines      a straight line through a few medians
curves     latency, seconds per byte and overhead from times by size, with intervals; the model is chosen by held-out error
shapes     what curves there are: seconds as a sum of coefficients times bytes
choice     which of them errs least on sizes it was not fitted to
pieces     a curve as the straight lines of a cluster file
robust     the least squares that curves are fitted by
samples    what repetitions of one measurement tell: two modes, or no agreement
groups     which of several alike members is slow
scatter    held-out errors as an interval of shares
"""

from scaleproof.validator.calibration.fit.curve_fitting.lines import line

__all__ = ["line"]
