"""What follows from a model's shape alone: parameter counts and FLOPs per token."""
