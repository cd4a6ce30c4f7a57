"""Communication of one rank of a job whose other ranks do not run: it is recorded, and other ranks are assumed to send the same."""
