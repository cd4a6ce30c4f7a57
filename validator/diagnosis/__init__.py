"""Why a job is slow: findings from its traces, logs, tests of its network and samples of its devices."""
