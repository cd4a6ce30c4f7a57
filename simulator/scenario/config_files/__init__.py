"""Configuration files of training software as fields of a scenario: DeepSpeed, Accelerate, Transformers, TRL, Axolotl,
LLaMA-Factory and torchtune."""

from scaleproof.simulator.scenario.config_files.reading import PREFIX, ConfigFiles, Line, format_of, paths_of, read

__all__ = ["PREFIX", "ConfigFiles", "Line", "format_of", "paths_of", "read"]
