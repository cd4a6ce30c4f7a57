"""Scoring of predictions against published measurements, table by table."""
