"""One HTML page about runs, which works from disk without a network."""

from paper.report.page import write_report

__all__ = ["write_report"]
