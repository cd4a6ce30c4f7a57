"""Pages of reports: their sections, sentences and files."""
