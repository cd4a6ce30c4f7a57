"""Pipeline parallelism: schedules, partition of the model into stages, and tasks of the ranks."""
