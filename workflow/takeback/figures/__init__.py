"""Figures of the report: one module a figure, all in the look of ``style``."""
