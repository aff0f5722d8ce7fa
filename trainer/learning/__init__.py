"""How weights are updated: the learner, its loss, its optimizer."""
