"""How the orders of pipeline schedules come about; what others need of it is in simulator.strategy.pipeline.schedule."""
