"""Pipeline parallelism on a rank: schedules of torch.distributed.pipelining with recorded stages."""
