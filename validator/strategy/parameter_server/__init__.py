"""Parameter servers on a rank: workers, servers, their links and consistency models."""
