"""The processes of a run: rank 0 plays, credits and decides, all compute its updates together.

`processes` joins them and carries what they tell each other, `weights` spreads and gathers tensors.
Leaves out what an update is (`trainer.learning`).
"""
