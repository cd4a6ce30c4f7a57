"""Communication of one rank whose peers do not run: it is recorded, and other ranks are assumed to send the same."""
