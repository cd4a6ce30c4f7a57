"""Reports: a results folder as one self-contained page, and the same as CSV and PNG.

`scaleproof.reports.pages.page.build(folder)` writes everything; results are read by `scaleproof.reports.read.results`.
"""
