"""The commands of the trainer, a module each. torch is imported only when one runs."""
