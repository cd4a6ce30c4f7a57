"""Reports: a results folder as one self-contained page, and the same as CSV and PNG.

`reports.page.build(folder)` writes everything; results are read by `reports.results`.
"""
