"""Charts as data, and how they are drawn: interactive for a page, still for paper."""
