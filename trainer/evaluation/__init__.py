"""Test questions: played, scored, compared between runs."""
