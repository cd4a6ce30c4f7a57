"""What results say: each kind of result as sections, which the console, pages and notebooks render."""
