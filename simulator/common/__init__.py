"""Helpers that every package uses: units, errors, YAML files with line numbers, file locks, CSR arrays and batched numbers."""
