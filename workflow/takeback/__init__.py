"""Takeback: kill a distributed training run, resume it, and prove with bits that nothing was lost."""

__version__ = "0.1.0"
