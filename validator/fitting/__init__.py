"""Fit of constants of frameworks and clusters to a few measured runs, and what to measure next."""
