"""How far measurements may lie from predictions: an interval from the residuals of similar published runs."""
