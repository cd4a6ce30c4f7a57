"""Proof of the predictor: a lab is calibrated from probes alone, and predictions are compared with runs it was not calibrated
on."""
