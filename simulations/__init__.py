"""Worlds whose truth is known exactly, and the studies that hold the estimators to it."""
