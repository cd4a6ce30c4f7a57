"""What if: questions about ResNet-50 by parameter servers and by a ring, from Python. Run it: python examples/what_if.py"""

from __future__ import annotations

from scaleproof import compare, crossover, load, plan, predict, sensitivity, sweep

SCENARIO = "resnet50-servers-p100"


def main() -> None:
    """Evaluates each question and prints the results."""
    # how fast is it, and how sure is that?
    servers = load(SCENARIO)
    run = predict(servers)
    low_s, high_s = run.prediction_interval_s or (run.step_time_s, run.step_time_s)
    print(f"{run.samples_per_s:,.0f} samples/s; a step takes {low_s:.2f} to {high_s:.2f} s with a probability of 90 %")

    # would a ring be better?
    both = compare(servers, load("resnet50-ring-p100"))
    print(f"a ring is {both.ratio:.2f} times as fast; distinguishable: {both.speedup.is_distinguishable}")
    print(both.to_frame()[["step_time_s", "samples_per_s", "compute_s", "exposed_communication_s"]].round(3))

    # what holds the servers up?
    found = sensitivity(servers)
    print(f"bottleneck: {found.bottleneck or 'none'}")
    print(found.to_frame()["elasticity"].dropna().round(2))

    # at which bandwidth does a ring overtake as many servers as workers, where nodes have one GPU each?
    # framework costs are excluded, since frameworks differ as well
    overrides = ["framework=ideal", "cluster=aws-p2-xlarge"]
    where = crossover("resnet50-ring-p100", y="workers=4,8", strategies=["ring", "ps-all"], overrides=overrides, points=5)
    borders = where.borders_to_frame().set_index("strategy.workers")
    print((borders["cluster.network.bandwidth_Bps"] * 8 / 1e9).round(2).rename("the ring overtakes, Gbit/s"))

    # what would faster networks do?
    axes = {"cluster.network.bandwidth": ["10 Gbit/s", "25 Gbit/s", "100 Gbit/s"]}
    points = sweep(SCENARIO, axes=axes).to_frame().set_index("cluster.network.bandwidth_Bps")
    print(points[["step_time_s", "samples_per_s"]].round(2))

    # and what is the best way to train something larger, on 32 GPUs?
    planned = plan(load("llama-2-7b-fsdp-a100"), 32, top=3)
    print(planned.to_frame()[["step_time_s", "framework", "workers", "zero"]].round(3))


if __name__ == "__main__":
    main()
