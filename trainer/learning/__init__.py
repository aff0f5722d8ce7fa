"""How weights are updated: the learner, its loss, its optimizer.

Among several processes `shares` deals the rows of a batch out, `worker` is what all ranks but 0 do.
"""
