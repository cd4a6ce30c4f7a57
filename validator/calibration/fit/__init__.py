"""Fits of a cluster's numbers to measured points: device, links, messages and collectives."""
