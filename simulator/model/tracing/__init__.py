"""Tracing of torch modules into layers."""
