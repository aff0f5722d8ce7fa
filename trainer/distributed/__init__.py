"""The processes of a run: rank 0 plays, credits and decides, all compute its updates together.

`processes` joins them and carries what they tell each other, `shares` deals the rows of a batch
out, `weights` spreads and gathers tensors, `worker` is what all ranks but 0 do.
"""
